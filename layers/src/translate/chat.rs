//! A chat caller in front of a messages vendor.
