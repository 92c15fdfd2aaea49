// Encodes the rows of a data set in parts, so that memory holds a part.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "longspan/data/example_encoder.h"

namespace longspan {

using ExampleTaker = std::function<void(const Example&)>;

/// Whether the stage makes each example from one row, or packs rows without looking at others.
bool encodes_in_parts(const Stage& stage);

/// Gives the examples and reports of encode_examples() for a model without pictures. The samples
/// that sft packs lie in a temporary file until finish(), since packing needs the lengths of all
/// samples.
class PartEncoder {
 public:
  /// `encoding`: without pictures; its references must outlive this object, and max_positions is
  /// not read. `folder`: of the temporary file. `take` gets the examples in order.
  PartEncoder(const RowEncoding& encoding, const std::string& folder, ExampleTaker take);
  ~PartEncoder();
  PartEncoder(const PartEncoder&) = delete;
  PartEncoder& operator=(const PartEncoder&) = delete;

  /// Throws as encode_examples(), and counts bad rows for finish().
  void add(const std::vector<Conversation>& rows);
  /// Passes on the examples that needed all rows. Returns the reports, without examples. Throws
  /// UserError: bad rows, no examples.
  EncodedExamples finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
