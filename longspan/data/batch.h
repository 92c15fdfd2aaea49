// What a model eats: one packed row, whole or one rank's share of it.
// T: tokens of this (share of a) row, A: axes of positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/data/ignore_label.h"
#include "longspan/data/packing.h"
#include "longspan/data/token_order.h"

namespace longspan {

/// Numbers that go with the tokens of a sample or of a row wherever these go: log-probabilities,
/// advantages, places in an image. They are the i-th token's own: columns are not shifted.
struct Column {
  at::Tensor values;   // [tokens] or [tokens, k]
  double padding = 0;  // of tokens that pad a row
};
using Columns = std::map<std::string, Column>;  // by name

/// One sample after tokenization; labels are NOT shifted: labels[i] is input_ids[i] or
/// kIgnoreLabel. They are no column: every row has them, and collate() shifts them. All samples of
/// a row have the same columns, of the same dtype, k and padding.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  Columns columns = {};
  /// int64 [A, tokens], where positions are more than a count of the tokens; else undefined.
  at::Tensor positions_AT = {};
};

/// A packed row. labels_T is already shifted left inside each document: labels_T[i] is the token
/// that position i predicts, kIgnoreLabel at the last token of a document. positions_T restarts at
/// 0 in each document; those of a forked one's second branch go on from its prompt. `packing`
/// always describes the WHOLE row as attention sees it (padding documents included), also when the
/// tensors hold one rank's share. documents_T[i] is the number, from 0, of the sample that token i
/// belongs to, -1 where it is padding. places_T[i] is the place of token i in its document, where
/// positions do not say so: where they restart inside of documents, or have several axes; elsewhere
/// it is undefined.
struct Batch {
  at::Tensor tokens_T;     // int64
  at::Tensor labels_T;     // int64
  at::Tensor positions_T;  // int64; of several axes [A, T]
  at::Tensor documents_T;  // int64
  Packing packing;
  at::Tensor places_T = {};  // int64, or undefined
  /// int64 [L]: where labels_T has a label, in order. Undefined: nobody has looked (label_rows).
  at::Tensor label_rows_L = {};
  Columns columns = {};
  /// One more than the largest of positions_T in the WHOLE row, padding aside: what rotations that
  /// long rows have otherwise go by. 0: not known.
  int64_t num_positions = 0;
};

/// Samples -> one row with a document each; shifts the labels. Shapes: T = sum of the lengths.
/// Where any sample has positions of several axes, a sample without counts its tokens on each axis.
/// Throws as check_alike() does.
Batch collate(const std::vector<const Sample*>& samples);

/// A row of one token that pads it, with the columns and the axes of positions that rows with
/// `pattern` have: what a rank computes that has no row of its own.
Batch idle_row(const Sample& pattern);

/// One document of several: their tokens, labels and columns one behind the other, and their
/// positions where any of them has axes. Throws as collate() does.
Sample joined(const std::vector<const Sample*>& samples);

/// The columns and positions of a sample as bytes, to be hashed: names, shapes, dtypes, padding and
/// numbers. Empty where a sample is nothing but tokens and labels.
std::string attached_bytes(const Sample& sample);

/// Throws std::logic_error for samples that cannot be in one row: their columns, or the axes of
/// their positions, differ.
void check_alike(const std::vector<const Sample*>& samples);

/// The tokens of a row at these places, with all that goes with them. `packing`: of what is taken.
Batch take(const Batch& row, const std::vector<int64_t>& index, const Packing& packing);

/// One rank's share of a row. Padding gets token 0, label kIgnoreLabel, position 0, document -1,
/// and in each column its own value.
Batch shard(const Batch& row, const TokenOrder& order);

/// A copy on another device, for which the host does not wait, and which knows where its labels
/// are; itself where it is there.
Batch on_device(const Batch& batch, at::Device device);

/// A number for each token, [T] int64: unlike any other's of the row, and the same on whichever
/// rank holds the token (made of its document and its place in it).
at::Tensor token_keys(const Batch& batch);

/// Where the row has a label, in order: [L] int64.
at::Tensor label_rows(const Batch& batch);

/// Number of labels that are trained in this (share of a) row.
int64_t count_labels(const Batch& batch);

}  // namespace longspan
