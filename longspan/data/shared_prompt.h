// Pairs of answers to one prompt, as rows in which the prompt is computed once.
#pragma once

#include <vector>

#include "longspan/data/batch.h"
#include "longspan/data/example.h"

namespace longspan {

/// Pairs (Example::documents[0] chosen, [1] rejected) -> one row. It has the labels that collate()
/// of all chosen and rejected documents in turn has, predicted from the same tokens at the same
/// positions. A pair becomes one forked document (data/packing.h): the tokens that both begin with,
/// then the rest of the chosen one, then the rest of the rejected one. The last token of the prompt
/// predicts the first token of either answer, so each branch has its own copy of it. Tokens whose
/// columns or given positions differ are not shared. Pairs that share nothing stay two documents.
///
/// documents_T is 2 i for the chosen document of pair i and for what it shares, 2 i + 1 for the
/// rejected one, as with collate(). Shapes: T = sum of the lengths less what is shared.
Batch collate_shared(const std::vector<const Example*>& pairs);

}  // namespace longspan
