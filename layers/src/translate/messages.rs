//! A messages caller in front of a chat vendor.
