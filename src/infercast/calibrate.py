"""Until 1.0, ``from infercast.calibrate import calibrate`` works; the module is `infercast.calibration` now."""

import sys
import warnings
from typing import Any

from infercast import calibration

warnings.warn("infercast.calibrate is infercast.calibration now; 1.0 drops the old name", DeprecationWarning, 2)
for _name in calibration.__all__:
    setattr(calibration.calibrate, _name, getattr(calibration, _name))
_modules: dict[str, Any] = sys.modules
_modules[__name__] = calibration.calibrate  # As a module it would hide the function of this name
