"""What people read: findings in words, figures, one self-contained page. Reads runs; measures nothing itself."""
