// Rows in which documents share a common prefix.
#pragma once

#include <vector>

#include "longspan/rows/batch.h"
#include "longspan/rows/example.h"

namespace longspan {

/// Which tokens several documents may share.
enum class SharedTokens {
  /// Tokens at which no document predicts a label, followed by a token with equal data in all
  /// documents.
  kWithoutLabels,
  /// Also tokens at which only one document predicts a label, as in rollouts that others continue.
  kWithOneLabel,
};

/// Collates examples into one row in which the documents of an example form a tree
/// (rows/packing.h): a common prefix of several documents is computed once. The labels equal the
/// labels of collate() on all documents in turn, and are predicted from the same tokens at the same
/// positions. If a document predicts a label from a shared token, the other documents have no label
/// there.
///
/// Documents share a token under three conditions: the token's data are equal, the next tokens are
/// equal, and `shared` allows the number of documents that predict a label from the token. The
/// prompt's last token predicts the first token of each answer, so each branch has its own copy of
/// the prompt's last token. Each document has a last token of its own. A two-way span is shared
/// whole or not at all. A document without a common prefix stays a separate document.
///
/// documents_T has the index of a token's document among the documents of all examples, as in
/// collate(). A shared token has the index of the document that predicts a label from it, else of
/// the first document. T = sum of the lengths, less the shared tokens.
Batch collate_shared(const std::vector<const Example*>& examples, SharedTokens shared);

}  // namespace longspan
