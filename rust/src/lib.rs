//! Text services for the C++ program behind a small C interface (see include/longspan_rs.h).
