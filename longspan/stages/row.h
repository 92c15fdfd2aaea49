// Examples -> a row -> this rank's share of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/data/batch.h"
#include "longspan/data/example_set.h"
#include "longspan/data/shared_prompt.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// A document of a row: which example it is of, and which of its documents.
struct DocumentOf {
  const Example* example;  // one of the row's
  int number;
};

/// One micro-batch of a data-parallel group; the same on all members of its sequence group but for
/// `local`.
struct Row : DrawnExamples {
  std::vector<DocumentOf> documents;  // in the order of the numbers in Batch::documents_T
  Batch whole, local;

  int64_t num_documents() const { return static_cast<int64_t>(documents.size()); }
  /// Tokens of its documents as the data holds them: a prompt that two of them share counts twice.
  /// An idle row has none.
  int64_t num_tokens() const;
  /// The tokens that are computed: a shared prompt counts once.
  int64_t num_computed_tokens() const;
};

/// Which documents of its examples a row holds.
enum class Documents {
  kAll,
  kPairs,  // all, with prompts that both answers share
  kFirst,
  kSecond,
};

/// An idle row has one token, no documents and no labels: it is for a rank that has to take part in
/// what the others compute.
Row make_row(const DrawnExamples& drawn, Documents which, const SequenceParallel& attention,
             at::Device device);

/// This rank's share of a row in the order that its attention asks for, on its device.
Batch local_share(const Batch& row, const SequenceParallel& attention, at::Device device);

}  // namespace longspan
