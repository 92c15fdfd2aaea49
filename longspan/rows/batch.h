// The input of a model: one packed row, or one rank's share of it. T: tokens of the row or share,
// A: axes of positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "longspan/rows/ignore_label.h"
#include "longspan/rows/packing.h"
#include "longspan/rows/picture.h"
#include "longspan/rows/token_order.h"

namespace longspan {

/// Numbers for each token of a sample or a row, for example log-probabilities, advantages or places
/// in an image. Unlike labels they are not shifted: number i belongs to token i.
struct Column {
  at::Tensor values;   // [tokens] or [tokens, k]
  double padding = 0;  // value for padding tokens
};
using Columns = std::map<std::string, Column>;  // by name

/// One tokenized sample. Labels are NOT shifted: labels[i] is input_ids[i] or kIgnoreLabel. They
/// are no column: every row has them, and collate() shifts them. All samples of a row have the same
/// columns, with the same dtype, k and padding.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels = {};
  Columns columns = {};
  /// int64 [A, tokens]; undefined where positions count the tokens.
  at::Tensor positions_AT = {};
  /// With pictures, the sample has the column kFeatureColumn.
  std::vector<Picture> pictures = {};
};

/// A packed row, or one rank's share of it.
///   - labels_T is shifted left inside each document: labels_T[i] is the token that position i
///     predicts, and kIgnoreLabel at a document's last token.
///   - positions_T restarts at 0 in each document. In a forked document, the second branch
///     continues the prompt's positions.
///   - packing always describes the WHOLE row as attention sees it, with padding documents.
///   - documents_T[i] is the number, from 0, of token i's sample; -1 for padding.
///   - places_T[i] is token i's place in its document. It is undefined if positions are places, and
///     defined if positions restart inside documents or have several axes.
struct Batch {
  at::Tensor tokens_T;     // int64
  at::Tensor labels_T;     // int64
  at::Tensor positions_T;  // int64; [A, T] with several axes
  at::Tensor documents_T;  // int64
  Packing packing;
  at::Tensor places_T = {};  // int64, or undefined
  /// int64 [L]: indices of the labels in labels_T, ascending. Undefined: not computed yet
  /// (label_rows).
  at::Tensor label_rows_L = {};
  Columns columns = {};
  /// The row's pictures; null where samples have no kFeatureColumn, whose indices are those of the
  /// row's features here.
  std::shared_ptr<const RowPictures> pictures = {};
  /// int64 [F]: indices of the tokens with a feature, ascending. Undefined: not computed yet
  /// (feature_rows).
  at::Tensor feature_rows_F = {};
  /// One more than the largest position of the WHOLE row, without padding; 0: unknown. Some
  /// rotations depend on it.
  int64_t num_positions = 0;
};

/// Returns the runs of tokens with a feature, as transformers' Gemma 3 finds pictures, if the
/// sample's pictures are two-way (Picture::is_two_way); else nothing.
std::vector<TwoWaySpan> two_way_spans(const Sample& sample);

/// Concatenates samples into one row with a document each, and shifts the labels. T = sum of the
/// lengths. Where some samples have positions on several axes, the other samples count their tokens
/// on each axis. Throws std::logic_error as check_alike() does.
Batch collate(const std::vector<const Sample*>& samples);

/// Returns a row of one padding token, with the columns and axes of positions of `pattern`. A rank
/// without a row of its own computes it.
Batch idle_row(const Sample& pattern);

/// Concatenates documents into one: tokens, labels, columns, pictures, and positions where any has
/// axes. kFeatureColumn then counts the features of all pictures. Throws std::logic_error as
/// collate() does.
Sample joined(const std::vector<const Sample*>& samples);

/// Returns the sample's columns, positions and pictures as bytes for a hash: names, shapes, dtypes,
/// padding and numbers; of pictures, their contents by checksum, and no paths. Empty where the
/// sample has only tokens and labels.
std::string attached_bytes(const Sample& sample);

/// Throws std::logic_error where samples cannot share a row: their columns or axes of positions
/// differ.
void check_alike(const std::vector<const Sample*>& samples);

/// Returns the tokens of a row at these indices, with all their data. `packing`: of the result.
Batch take(const Batch& row, const std::vector<int64_t>& index, const Packing& packing);

/// Returns one rank's share of a row. Padding gets token 0, label kIgnoreLabel, position 0,
/// document -1, and each column's padding value.
Batch shard(const Batch& row, const TokenOrder& order);

/// Copies a batch, with label_rows_L and feature_rows_F set, to another device without blocking the
/// host. Returns the batch itself if it is on the device already.
Batch on_device(const Batch& batch, at::Device device);

/// Returns a key for each token, [T] int64: unique in the row, and the same on whichever rank holds
/// the token. It is made of the token's document and its place there.
at::Tensor token_keys(const Batch& batch);

/// Returns the indices of the row's labels, ascending: [L] int64.
at::Tensor label_rows(const Batch& batch);

/// Returns the indices of the tokens with a feature, ascending: [F] int64; undefined where the row
/// has no pictures.
at::Tensor feature_rows(const Batch& batch);

/// The number of labels in this row or share.
int64_t count_labels(const Batch& batch);

}  // namespace longspan
