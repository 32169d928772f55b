"""Until 1.0, ``from infercast.calibrate import calibrate`` works; the module is `infercast.calibration` now."""

import sys
import warnings

from infercast import calibration

warnings.warn("infercast.calibrate is infercast.calibration now; 1.0 drops the old name", DeprecationWarning, 2)
for _name in calibration.__all__:
    setattr(calibration.calibrate, _name, getattr(calibration, _name))
sys.modules[__name__] = calibration.calibrate  # type: ignore[assignment]  # as a module it would hide the function
