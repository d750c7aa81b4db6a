"""Windows in which functions are warm: learnt from idle times, or fixed."""

from serfer.control.windows.levels import Change, IdlePeriod, WarmLevels
from serfer.control.windows.plugged_in import window_policies
from serfer.control.windows.windows import WindowPolicy, Windows

__all__ = ["Change", "IdlePeriod", "WarmLevels", "WindowPolicy", "Windows", "window_policies"]
