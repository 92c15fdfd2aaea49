// Makes a row from examples, and a rank's share of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/data/example_set.h"
#include "longspan/rows/batch.h"
#include "longspan/rows/shared_prompt.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// A document of a row: its example, and its index in the example.
struct DocumentOf {
  const Example* example;  // an example of the row
  int number;
};

/// One micro-batch of a data-parallel group. All members of its sequence group have the same row,
/// except `local`.
struct Row : DrawnExamples {
  std::vector<DocumentOf> documents;  // in the order of the indices in Batch::documents_T
  Batch whole, local;
  SequenceParallel* attention = nullptr;  // of the ranks that share the row

  /// Returns the ranks that share the row.
  Group sharers() const { return attention->sharers(); }
  /// True on one of the ranks that share the row.
  bool leads() const { return sharers().rank() == 0; }

  int64_t num_documents() const { return static_cast<int64_t>(documents.size()); }
  /// Returns the tokens of the row's documents in the data; a prompt shared by two documents counts
  /// twice. 0 for an idle row.
  int64_t num_tokens() const;
  /// Returns the computed tokens; a shared prompt counts once.
  int64_t num_computed_tokens() const;
};

/// Selects the documents of an example for a row.
enum class Documents {
  kAll,
  kPairs,     // all; both answers share the prompt
  kRollouts,  // all; rollouts of a group share their common tokens
  kFirst,
  kSecond,
};

/// Makes a row. Without examples the row is an idle row of one token, without documents and labels,
/// for a rank that must take part in the computation of other ranks.
/// `attention`: of the ranks that share the row; must outlive the row.
Row make_row(const DrawnExamples& drawn, Documents which, SequenceParallel& attention,
             at::Device device);

/// Returns this rank's share of a row, in the token order of the rank's attention, on `device`.
Batch local_share(const Batch& row, const SequenceParallel& attention, at::Device device);

}  // namespace longspan
