// Groups of ranks that are threads of one process: what they send is copied from memory to memory.
#pragma once

#include "longspan/comm/link.h"

namespace longspan::testing {

/// Collectives end as Gloo's do, without sockets and threads of their own: whoever of an
/// operation's ranks starts it last copies for all of them, and then it is complete everywhere.
/// Sums are taken in rank order. What waits for a rank whose group is gone, or longer than the
/// timeout, throws.
const LinkTraits& thread_link();

}  // namespace longspan::testing
