# Its tests run where it is installed, by the test beside it.
collect_ignore = ["xmckit-asymmetric"]
