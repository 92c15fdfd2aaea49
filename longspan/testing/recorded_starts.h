// Groups of threads that record the order in which collectives start.
#pragma once

#include <string>

#include "longspan/comm/link.h"

namespace longspan::testing {

/// Rank 0's collectives in its groups over recording_link(): "g" for the start of a gather, "s" for
/// that of an all-to-all, "r" for that of an all-reduce. The caller clears the text.
std::string& recorded_starts();

LinkTraits recording_link();

}  // namespace longspan::testing
