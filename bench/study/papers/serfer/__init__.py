"""SerFer (Shaikh et al.): its driver as published and repaired, and its pooled heads on real digits."""
