// Rows in which documents share their common beginnings.
#pragma once

#include <vector>

#include "longspan/rows/batch.h"
#include "longspan/rows/example.h"

namespace longspan {

/// Which tokens several documents may share.
enum class SharedTokens {
  /// Tokens that predict no label, before a token whose data all documents have in common.
  kWithoutLabels,
  /// Also tokens from which one document predicts a label: of rollouts that others continue.
  kWithOneLabel,
};

/// Collates examples into one row in which the documents of an example form a tree
/// (rows/packing.h): tokens at the beginning that several documents have in common are computed
/// once. The labels equal the labels of collate() on all documents in turn, and are predicted from
/// the same tokens at the same positions, but a label that several documents have is predicted by
/// one of them only if the others ignore it.
///
/// Documents share a token if they have all of its data in common, and the next token, and as few
/// of them predict a label from it as `shared` says. The prompt's last token predicts the first
/// token of each answer, so each branch has its own copy of the prompt's last token. Each document
/// has a last token of its own. A two-way span is shared whole or not at all. A document without a
/// common beginning stays a document of its own.
///
/// documents_T is the index of the document among the documents of all examples, as in collate();
/// of a shared token, the index of the document that predicts from it, else of the first document.
/// T = sum of the lengths, less the shared tokens.
Batch collate_shared(const std::vector<const Example*>& examples, SharedTokens shared);

}  // namespace longspan
