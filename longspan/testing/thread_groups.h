// Groups of ranks that are threads of one process; messages are memory copies.
#pragma once

#include "longspan/comm/link.h"

namespace longspan::testing {

/// Collectives complete as Gloo's do, without sockets and threads of their own: the last rank to
/// start an operation copies for all ranks, and the operation is then complete everywhere. Sums are
/// in rank order. Waiting for a rank whose group is gone, or beyond the timeout, throws.
const LinkTraits& thread_link();
/// The same, but each group takes 2.5 s to connect, of 2 s that LinkTraits::time_to_meet allows.
const LinkTraits& slow_thread_link();

}  // namespace longspan::testing
