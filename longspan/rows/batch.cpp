#include "longspan/rows/batch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "longspan/memory/transfer.h"

namespace longspan {

namespace {

at::Tensor empty_row(int64_t num_tokens) { return at::empty({num_tokens}, at::kLong); }

at::Tensor indices(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong));
}

int64_t num_tokens_of(const Sample& sample) { return std::ssize(sample.input_ids); }

// Returns 0 if positions are 0, 1, 2, ...
int64_t num_axes(const Sample& sample) {
  return sample.positions_AT.defined() ? sample.positions_AT.size(0) : 0;
}

at::Tensor positions_on_axes(const Sample& sample, int64_t num_axes) {
  if (sample.positions_AT.defined()) return sample.positions_AT;
  return at::arange(num_tokens_of(sample), at::kLong).expand({num_axes, num_tokens_of(sample)});
}

void check_column(const Sample& sample, const std::string& name, const Column& like) {
  const auto found = sample.columns.find(name);
  if (found == sample.columns.end()) {
    throw std::logic_error(fmt::format("a sample of a row has no column {}", name));
  }
  const Column& column = found->second;
  if (column.values.dim() == 0 || column.values.size(0) != num_tokens_of(sample) ||
      column.values.sizes().slice(1) != like.values.sizes().slice(1) ||
      column.values.scalar_type() != like.values.scalar_type() || column.padding != like.padding) {
    throw std::logic_error(
        fmt::format("column {} differs between samples, or from their tokens", name));
  }
}

Columns joined_columns(const std::vector<const Sample*>& samples) {
  Columns joined;
  if (samples.empty()) return joined;
  for (const auto& [name, column] : samples.front()->columns) {
    std::vector<at::Tensor> parts;
    for (const Sample* sample : samples) parts.push_back(sample->columns.at(name).values);
    joined[name] = {at::cat(parts), column.padding};
  }
  return joined;
}

// Puts the samples' pictures one after the other into a sample of all their tokens.
void join_features(const std::vector<const Sample*>& samples, Sample& all) {
  const auto found = all.columns.find(kFeatureColumn);
  if (found == all.columns.end()) return;
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const Sample* sample : samples) {
    const at::Tensor& own = sample->columns.at(kFeatureColumn).values;
    parts.push_back(at::where(own.lt(0), own, own + first));
    for (const Picture& picture : sample->pictures) {
      all.pictures.push_back(picture);
      first += picture.num_features;
    }
  }
  found->second.values = at::cat(parts);
}

// Makes the row's pictures, and the row's kFeatureColumn from the samples' kFeatureColumn.
void join_pictures(const std::vector<const Sample*>& samples, Batch& row) {
  const auto found = row.columns.find(kFeatureColumn);
  if (found == row.columns.end()) return;
  auto pictures = std::make_shared<RowPictures>();
  std::vector<at::Tensor> parts;
  for (const Sample* sample : samples) {
    // The row's index of each of the sample's features.
    std::vector<int64_t> index;
    for (const Picture& picture : sample->pictures) {
      const int64_t first = pictures->add(picture);
      for (int64_t i = 0; i < picture.num_features; ++i) index.push_back(first + i);
    }
    const at::Tensor& own = sample->columns.at(kFeatureColumn).values;
    if (index.empty()) {
      parts.push_back(own);
      continue;
    }
    const at::Tensor of_row = indices(index).index_select(0, own.clamp_min(0));
    parts.push_back(at::where(own.lt(0), own, of_row));
  }
  found->second.values = at::cat(parts);
  row.pictures = std::move(pictures);
}

int64_t most_axes(const std::vector<const Sample*>& samples) {
  int64_t axes = 0;
  for (const Sample* sample : samples) axes = std::max(axes, num_axes(*sample));
  return axes;
}

// Returns [A, T] if a sample has axes, otherwise an undefined tensor.
at::Tensor joined_positions(const std::vector<const Sample*>& samples) {
  const int64_t axes = most_axes(samples);
  if (axes == 0) return {};
  std::vector<at::Tensor> parts;
  for (const Sample* sample : samples) parts.push_back(positions_on_axes(*sample, axes));
  return at::cat(parts, 1);
}

// Returns the row with `cut` applied to each tensor of tokens. Tokens are the last dimension of
// positions and the first of other tensors. `padding`: the value for padding tokens.
using Cut = std::function<at::Tensor(const at::Tensor& x, int64_t dim, double padding)>;

Batch with_each(const Batch& row, const Cut& cut) {
  Batch result;
  result.packing = row.packing;
  result.num_positions = row.num_positions;
  result.pictures = row.pictures;
  result.example_lengths = row.example_lengths;
  result.tokens_T = cut(row.tokens_T, 0, 0);
  result.labels_T = cut(row.labels_T, 0, kIgnoreLabel);
  result.positions_T = cut(row.positions_T, row.positions_T.dim() - 1, 0);
  result.documents_T = cut(row.documents_T, 0, -1);
  if (row.places_T.defined()) result.places_T = cut(row.places_T, 0, 0);
  for (const auto& [name, column] : row.columns) {
    result.columns[name] = {cut(column.values, 0, column.padding), column.padding};
  }
  return result;
}

void append(std::string& bytes, const void* data, size_t size) {
  bytes.append(static_cast<const char*>(data), size);
}

void append_number(std::string& bytes, int64_t number) { append(bytes, &number, sizeof(number)); }

void append_tensor(std::string& bytes, const at::Tensor& x) {
  append_number(bytes, static_cast<int64_t>(x.scalar_type()));
  append_number(bytes, x.dim());
  for (const int64_t size : x.sizes()) append_number(bytes, size);
  const at::Tensor here = x.cpu().contiguous();
  append(bytes, here.const_data_ptr(), here.nbytes());
}

}  // namespace

void check_alike(const std::vector<const Sample*>& samples) {
  if (samples.empty()) return;
  const int64_t axes = most_axes(samples);
  for (const Sample* sample : samples) {
    if (sample->columns.size() != samples.front()->columns.size()) {
      throw std::logic_error("samples of a row differ in their columns");
    }
    for (const auto& [name, column] : samples.front()->columns) {
      check_column(*sample, name, column);
    }
    const at::Tensor& positions_AT = sample->positions_AT;
    if (positions_AT.defined() && (positions_AT.dim() != 2 || positions_AT.size(0) != axes ||
                                   positions_AT.size(1) != num_tokens_of(*sample) ||
                                   positions_AT.scalar_type() != at::kLong)) {
      throw std::logic_error("positions of samples differ in their axes, or from their tokens");
    }
  }
}

std::vector<TwoWaySpan> two_way_spans(const Sample& sample) {
  std::vector<TwoWaySpan> spans;
  if (std::ranges::none_of(sample.pictures, &Picture::is_two_way)) return spans;
  const at::Tensor& features = sample.columns.at(kFeatureColumn).values;
  const int64_t* feature = features.const_data_ptr<int64_t>();
  const int64_t num_tokens = features.numel();
  for (int64_t begin = 0, end = 0; begin < num_tokens; begin = end + 1) {
    for (end = begin; end < num_tokens && feature[end] >= 0;) ++end;
    if (begin < end) spans.push_back({begin, end});
  }
  return spans;
}

Batch collate(const std::vector<const Sample*>& samples) {
  check_alike(samples);
  std::vector<Document> documents;
  documents.reserve(samples.size());
  for (const Sample* sample : samples) {
    documents.push_back({num_tokens_of(*sample), {}, two_way_spans(*sample)});
  }

  Batch batch;
  for (const Document& document : documents) batch.example_lengths.push_back(document.length);
  batch.packing = Packing::from_documents(documents);
  const int64_t num_tokens = batch.packing.num_tokens();
  batch.tokens_T = empty_row(num_tokens);
  batch.labels_T = empty_row(num_tokens);
  batch.positions_T = empty_row(num_tokens);
  batch.documents_T = empty_row(num_tokens);
  int64_t* token = batch.tokens_T.mutable_data_ptr<int64_t>();
  int64_t* label = batch.labels_T.mutable_data_ptr<int64_t>();
  int64_t* position = batch.positions_T.mutable_data_ptr<int64_t>();
  int64_t* document = batch.documents_T.mutable_data_ptr<int64_t>();
  int64_t number = 0;
  for (const Sample* sample : samples) {
    const int64_t length = std::ssize(sample->input_ids);
    for (int64_t i = 0; i < length; ++i) {
      *token++ = sample->input_ids[i];
      *label++ = i + 1 < length ? sample->labels[i + 1] : kIgnoreLabel;
      *position++ = i;
      *document++ = number;
    }
    ++number;
  }
  batch.columns = joined_columns(samples);
  join_pictures(samples, batch);
  if (const at::Tensor positions_AT = joined_positions(samples); positions_AT.defined()) {
    batch.places_T = batch.positions_T;
    batch.positions_T = positions_AT;
  }
  if (num_tokens > 0) batch.num_positions = batch.positions_T.max().item<int64_t>() + 1;
  return batch;
}

Batch idle_row(const Sample& pattern) {
  const at::Tensor zero = at::zeros({1}, at::kLong);
  Batch row{.tokens_T = zero,
            .labels_T = at::full({1}, kIgnoreLabel, at::kLong),
            .positions_T = zero,
            .documents_T = at::full({1}, -1, at::kLong),
            .packing = Packing::single(1),
            .num_positions = 1};
  if (const int64_t axes = num_axes(pattern); axes > 0) {
    row.positions_T = at::zeros({axes, 1}, at::kLong);
    row.places_T = zero;
  }
  for (const auto& [name, column] : pattern.columns) {
    std::vector<int64_t> sizes = column.values.sizes().vec();
    sizes.front() = 1;
    row.columns[name] = {at::full(sizes, column.padding, column.values.options()), column.padding};
  }
  if (row.columns.contains(kFeatureColumn)) row.pictures = std::make_shared<RowPictures>();
  return row;
}

Sample joined(const std::vector<const Sample*>& samples) {
  check_alike(samples);
  Sample all;
  for (const Sample* sample : samples) {
    all.input_ids.insert(all.input_ids.end(), sample->input_ids.begin(), sample->input_ids.end());
    all.labels.insert(all.labels.end(), sample->labels.begin(), sample->labels.end());
  }
  all.columns = joined_columns(samples);
  join_features(samples, all);
  all.positions_AT = joined_positions(samples);
  return all;
}

std::string attached_bytes(const Sample& sample) {
  std::string bytes;
  for (const auto& [name, column] : sample.columns) {
    append_number(bytes, std::ssize(name));
    bytes += name;
    append(bytes, &column.padding, sizeof(column.padding));
    append_tensor(bytes, column.values);
  }
  if (sample.positions_AT.defined()) append_tensor(bytes, sample.positions_AT);
  // Contents, not paths: the same pictures in another folder are the same rows.
  for (const Picture& picture : sample.pictures) {
    const int64_t kind = int64_t{picture.is_video} + 2 * int64_t{picture.is_two_way};
    for (const int64_t number :
         {kind, picture.grid.t, picture.grid.h, picture.grid.w, picture.num_features}) {
      append_number(bytes, number);
    }
    append(bytes, &picture.checksum, sizeof(picture.checksum));
  }
  return bytes;
}

Batch take(const Batch& row, const std::vector<int64_t>& index, const Packing& packing) {
  const at::Tensor places = indices(index);
  Batch taken = with_each(row, [&](const at::Tensor& x, int64_t dim, double /*padding*/) {
    return x.index_select(dim, places);
  });
  taken.packing = packing;
  return taken;
}

Batch shard(const Batch& row, const TokenOrder& order) {
  const at::Tensor index = indices(order.index), padded = index.lt(0).nonzero().squeeze(1),
                   places = index.clamp_min(0);
  Batch local = with_each(row, [&](const at::Tensor& x, int64_t dim, double padding) {
    return x.index_select(dim, places).index_fill_(dim, padded, padding);
  });
  local.packing = order.packing;
  return local;
}

Batch on_device(const Batch& batch, at::Device device) {
  if (device.is_cpu() || !batch.tokens_T.is_cpu()) {
    return with_each(batch, [&](const at::Tensor& x, int64_t, double) { return x.to(device); });
  }
  // Sends all tensors at once, in the order in which they are visited. Finds the labels here, since
  // a device would have to send the host their number.
  std::vector<at::Tensor> parts;
  with_each(batch, [&](const at::Tensor& x, int64_t, double) { return parts.emplace_back(x); });
  parts.push_back(label_rows(batch));
  const at::Tensor features = feature_rows(batch);
  if (features.defined()) parts.push_back(features);
  parts = sent_to(parts, device);
  size_t next = 0;
  Batch there =
      with_each(batch, [&](const at::Tensor&, int64_t, double) { return parts.at(next++); });
  there.label_rows_L = parts.at(next++);
  if (features.defined()) there.feature_rows_F = parts.at(next);
  return there;
}

at::Tensor label_rows(const Batch& batch) {
  if (batch.label_rows_L.defined()) return batch.label_rows_L;
  return batch.labels_T.ne(kIgnoreLabel).nonzero().squeeze(1);
}

at::Tensor feature_rows(const Batch& batch) {
  if (batch.feature_rows_F.defined() || !batch.columns.contains(kFeatureColumn)) {
    return batch.feature_rows_F;
  }
  return batch.columns.at(kFeatureColumn).values.ge(0).nonzero().squeeze(1);
}

at::Tensor token_keys(const Batch& batch) {
  const at::Tensor& places_T = batch.places_T.defined() ? batch.places_T : batch.positions_T;
  return batch.documents_T.mul(int64_t{1} << 32).add_(places_T);
}

int64_t count_labels(const Batch& batch) {
  const int64_t* labels = batch.labels_T.const_data_ptr<int64_t>();
  int64_t count = 0;
  for (int64_t i = 0; i < batch.labels_T.numel(); ++i) count += labels[i] != kIgnoreLabel;
  return count;
}

}  // namespace longspan
