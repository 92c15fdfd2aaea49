// Compares the configurations of the ranks.
#pragma once

#include "longspan/comm/group.h"
#include "longspan/config/training_settings.h"

namespace longspan {

/// Throws UserError on all ranks, with the keys that differ, unless all ranks have these settings.
/// Collective.
void require_same_settings(const Group& world, const Settings& own);

}  // namespace longspan
