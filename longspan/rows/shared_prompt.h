// Rows in which two answers share one computed prompt.
#pragma once

#include <vector>

#include "longspan/rows/batch.h"
#include "longspan/rows/example.h"

namespace longspan {

/// Collates pairs (Example::documents[0] chosen, [1] rejected) into one row. The labels equal the
/// labels of collate() on all chosen and rejected documents in turn, and are predicted from the
/// same tokens at the same positions. A pair becomes one forked document (rows/packing.h): the
/// common beginning, the rest of the chosen document, the rest of the rejected document. The
/// prompt's last token predicts the first token of each answer, so each branch has its own copy of
/// the prompt's last token. Tokens with different columns or different given positions are not
/// shared. Pairs without a common beginning stay two documents.
///
/// documents_T is 2 i for the chosen document of pair i and for the shared tokens, and 2 i + 1 for
/// the rejected document, as in collate(). T = sum of the lengths, less the shared tokens.
Batch collate_shared(const std::vector<const Example*>& pairs);

}  // namespace longspan
