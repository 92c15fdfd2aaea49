// The input of a model: one packed row, or one rank's share of the row. A row is one sequence, or
// several packed sequences (documents). T: tokens of the row or share, A: axes of positions.
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
/// in an image. Columns are not shifted, unlike labels: number i belongs to token i.
struct Column {
  at::Tensor values;   // [tokens] or [tokens, k]
  double padding = 0;  // value for padding tokens
};
using Columns = std::map<std::string, Column>;  // by name

/// One tokenized sample. Labels are NOT shifted: labels[i] is input_ids[i] or kIgnoreLabel.
/// collate() shifts the labels. Labels are not a column, because every row has labels. All samples
/// of a row have the same columns, with the same dtype, k and padding.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels = {};
  Columns columns = {};
  /// int64 [A, tokens]; undefined: positions are 0, 1, 2, ...
  at::Tensor positions_AT = {};
  /// With pictures, the sample has the column kFeatureColumn.
  std::vector<Picture> pictures = {};
};

/// A packed row, or one rank's share of the row.
///   - labels_T is shifted left inside each document: labels_T[i] is the token that position i
///     predicts, and kIgnoreLabel at a document's last token.
///   - positions_T restarts at 0 in each document. In a document with branches, each branch
///     continues its parent's positions.
///   - packing always describes the WHOLE padded row, including documents of padding.
///   - documents_T[i] is the index of token i's sample in the row; -1 for padding.
///   - places_T[i] is token i's index in its document. places_T is defined only if positions differ
///     from these indices: if positions restart inside documents or have several axes.
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
  /// The row's pictures; null if samples have no kFeatureColumn. In a row, kFeatureColumn has
  /// indices among the features of all pictures of the row.
  std::shared_ptr<const RowPictures> pictures = {};
  /// int64 [F]: indices of the tokens with a feature, ascending. Undefined: not computed yet
  /// (feature_rows).
  at::Tensor feature_rows_F = {};
  /// The largest position of the WHOLE row, without padding, plus 1; 0: unknown. Some rotary
  /// embeddings depend on this number.
  int64_t num_positions = 0;
  /// For each sample of the WHOLE row, by its index in documents_T: the tokens of the sample, or of
  /// all samples of its example (neat_packing).
  std::vector<int64_t> example_lengths = {};
};

/// Returns the runs of tokens with a feature, as transformers' Gemma 3 finds pictures, if the
/// sample's pictures are two-way (Picture::is_two_way); else nothing.
std::vector<TwoWaySpan> two_way_spans(const Sample& sample);

/// Concatenates samples into one row, one document per sample, and shifts the labels. T = sum of
/// the lengths. If some samples have positions on several axes, the other samples get positions 0,
/// 1, 2, ... on each axis. Throws std::logic_error, as check_alike() does.
Batch collate(const std::vector<const Sample*>& samples);

/// Returns a row of one padding token, with the columns and axes of positions of `pattern`. A rank
/// without a row of its own computes this row, to take part in collectives.
Batch idle_row(const Sample& pattern);

/// Concatenates documents into one: tokens, labels, columns, pictures, and positions if any
/// document has positions on several axes. In the result, kFeatureColumn has indices among the
/// features of all pictures. Throws std::logic_error, as collate() does.
Sample joined(const std::vector<const Sample*>& samples);

/// Returns the sample's columns, positions and pictures as bytes for a hash: names, shapes, dtypes,
/// padding and numbers. Of pictures, the bytes have checksums of the contents, and no paths. Empty
/// if the sample has only tokens and labels.
std::string attached_bytes(const Sample& sample);

/// Throws std::logic_error if the samples cannot share a row because columns or axes of positions
/// differ.
void check_alike(const std::vector<const Sample*>& samples);

/// Returns the row's tokens at `index`, with all data of these tokens. `packing`: the packing of
/// the result.
Batch take(const Batch& row, const std::vector<int64_t>& index, const Packing& packing);

/// Returns one rank's share of a row. Padding gets token 0, label kIgnoreLabel, position 0,
/// document -1, and each column's padding value.
Batch shard(const Batch& row, const TokenOrder& order);

/// Copies a batch, with label_rows_L and feature_rows_F set, to another device without blocking the
/// host. Returns the batch itself if the batch is already on the device.
Batch on_device(const Batch& batch, at::Device device);

/// Returns a key for each token, [T] int64, computed from the token's document and the token's
/// index in the document. A key is unique in the row, and does not depend on the rank that holds
/// the token.
at::Tensor token_keys(const Batch& batch);

/// Returns the indices of the row's labels, ascending: [L] int64.
at::Tensor label_rows(const Batch& batch);

/// Returns the indices of the tokens with a feature, ascending: [F] int64; undefined if the row has
/// no pictures.
at::Tensor feature_rows(const Batch& batch);

/// Returns the number of labels in this row or share.
int64_t count_labels(const Batch& batch);

}  // namespace longspan
