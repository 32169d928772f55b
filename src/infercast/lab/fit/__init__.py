"""Fitting learned efficiencies to measured kernels. Needs the extra packages of ``infercast[fit]``."""
