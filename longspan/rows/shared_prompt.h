// Rows in which documents share their common beginnings.
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
/// (rows/packing.h): tokens at the beginning that several documents have in common are computed
/// once. The labels equal the labels of collate() on all documents in turn, and are predicted from
/// the same tokens at the same positions. A shared token predicts a label only if the other
/// documents ignore this label.
///
/// Documents share a token if all of them have equal data for the token and an equal next token,
/// and if no more of them predict a label from the token than `shared` allows. The prompt's last
/// token predicts the first token of each answer, so each branch has its own copy of the prompt's
/// last token. Each document has a last token of its own. A two-way span is shared whole or not at
/// all. A document without a common beginning stays a document of its own.
///
/// documents_T has the index of a token's document among the documents of all examples, as in
/// collate(). A shared token has the index of the document that predicts a label from it, else of
/// the first document. T = sum of the lengths, less the shared tokens.
Batch collate_shared(const std::vector<const Example*>& examples, SharedTokens shared);

}  // namespace longspan
