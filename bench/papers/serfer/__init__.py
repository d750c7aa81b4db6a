"""SerFer (Shaikh et al.): its evaluation redone."""
