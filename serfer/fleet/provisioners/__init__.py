"""Where instances come from: processes of this machine, given addresses, an Auto Scaling group."""
