"""Provisioners of instances: processes of this machine, given addresses, an Auto Scaling group."""
