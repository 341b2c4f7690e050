"""FlashLoad: fill an arena from files on this node in one bulk pass (csrc/bulk_read.hpp)."""
