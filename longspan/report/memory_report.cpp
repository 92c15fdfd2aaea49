#include "longspan/report/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "longspan/files/atomic_file.h"
#include "longspan/input/numbers.h"
#include "longspan/sequence_parallel/picture_shares.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

/// Sizes of those documents of an example that share a row.
struct RowSize {
  int64_t tokens = 0, labels = 0, example = 0;
  auto operator<=>(const RowSize&) const = default;

  void add(const Sample& document) {
    tokens += std::ssize(document.input_ids);
    labels +=
        std::count_if(document.labels.begin() + (document.labels.empty() ? 0 : 1),
                      document.labels.end(), [](int32_t label) { return label != kIgnoreLabel; });
  }
};

/// Sets the patches of the row of `batch_size` examples with the most. A picture that several
/// documents of the row have counts once.
void set_patches(RowLengths& lengths, const ExampleSet& examples, int64_t batch_size,
                 int sequence_size) {
  std::vector<std::pair<int64_t, int64_t>> sizes;  // patches, example
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer example = examples.example(i);
    int64_t patches = 0;
    for (const Sample& document : example->documents) {
      for (const Picture& picture : document.pictures) patches += picture.grid.num_patches();
    }
    if (patches > 0) sizes.emplace_back(patches, i);
  }
  const int64_t count = std::min<int64_t>(batch_size, std::ssize(sizes));
  std::partial_sort(sizes.begin(), sizes.begin() + count, sizes.end(), std::greater<>());
  RowPictures row;
  for (int64_t i = 0; i < count; ++i) {
    const ExamplePointer example = examples.example(sizes[i].second);
    for (const Sample& document : example->documents) {
      for (const Picture& picture : document.pictures) row.add(picture);
    }
  }
  const auto patches_of = [&row](const PictureFrame& frame) {
    const PictureGrid& grid = row.pictures[frame.picture].grid;
    return grid.h * grid.w;
  };
  const PictureShares shares = share_pictures(
      row, sequence_size, [](int64_t num_patches) { return static_cast<double>(num_patches); });
  for (const std::vector<PictureFrame>& frames : shares.frames) {
    int64_t of_rank = 0;
    for (const PictureFrame& frame : frames) {
      of_rank += patches_of(frame);
      lengths.largest_frame = std::max(lengths.largest_frame, patches_of(frame));
    }
    lengths.num_patches = std::max(lengths.num_patches, of_rank);
    lengths.row_patches += of_rank;
  }
}

}  // namespace

RowLengths row_lengths(const ExampleSet& examples, int64_t batch_size, RowKind kind,
                       int sequence_size) {
  const bool apart = has_documents_apart(kind);
  bool keeps_places = false;
  std::vector<std::vector<RowSize>> sizes(1);  // by document index, if they are in separate rows
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer drawn = examples.example(i);
    const Example& example = *drawn;
    sizes.resize(std::max<size_t>(sizes.size(), apart ? example.documents.size() : 1));
    for (std::vector<RowSize>& of_rows : sizes) of_rows.push_back({.example = i});
    for (size_t number = 0; number < example.documents.size(); ++number) {
      sizes[apart ? number : 0].back().add(example.documents[number]);
    }
    keeps_places = keeps_places || !example.position_restarts.empty();
  }
  RowLengths longest{.keeps_places = keeps_places};
  for (size_t number = 0; number < sizes.size(); ++number) {
    std::vector<RowSize>& of_rows = sizes[number];
    RowLengths row{.keeps_places = keeps_places};
    const int64_t count = std::min<int64_t>(batch_size, std::ssize(of_rows));
    std::partial_sort(of_rows.begin(), of_rows.begin() + count, of_rows.end(), std::greater<>());
    for (int64_t i = 0; i < count; ++i) {
      row.num_tokens += of_rows[i].tokens;
      row.num_labels += of_rows[i].labels;
      const ExamplePointer drawn = examples.example(of_rows[i].example);
      for (size_t k = 0; k < drawn->documents.size(); ++k) {
        const int64_t tokens = std::ssize(drawn->documents[k].input_ids);
        if (tokens > 0 && (!apart || k == number)) row.documents.push_back({tokens});
      }
    }
    if (row.num_tokens > longest.num_tokens) longest = std::move(row);
  }
  set_patches(longest, examples, batch_size, sequence_size);
  return longest;
}

std::string MemoryReport::begin(int ranks_here, bool cuda) {
  if (meter_ != nullptr) meter_->restart();
  const std::string warning =
      warning_of_memory((cuda ? 0 : account_.device) + account_.host, ranks_here, machine_memory());
  return table_of(account_) + (remark_.empty() ? "" : "\n" + remark_) +
         (warning.empty() ? "" : "\n" + warning);
}

std::string warning_of_memory(int64_t bytes_of_rank, int ranks_here, const MachineMemory& machine) {
  const int64_t bytes = product_of({bytes_of_rank, ranks_here}).value_or(INT64_MAX);
  if (bytes <= machine.bytes) return "";
  return fmt::format(
      "warning: {} of this run need some {}, and {}: the system may end the run. A smaller "
      "cutoff_len or per_device_train_batch_size, zero_stage with more machines, or "
      "offload_activations: disk, or checkpoints without save_async, take less.",
      counted(ranks_here, "rank"), name_bytes(bytes), machine.text());
}

std::string MemoryReport::end(const Group& world) {
  measured_.clear();
  if (meter_ == nullptr) return table_of(account_);
  const MeasuredPeak mine = meter_->peak();
  for (const std::string& line : world.gather_text(
           fmt::format("{} {} {} {}", mine.device, mine.host, mine.resident, mine.reserved))) {
    std::istringstream numbers(line);
    MeasuredPeak& peak = measured_.emplace_back();
    numbers >> peak.device >> peak.host >> peak.resident >> peak.reserved;
  }
  return table_of(account_, measured_);
}

void MemoryReport::write(const std::string& folder) const {
  int64_t kept = 0;
  for (const MemoryFacts::Layers& layers : facts_.layers) kept += layers.kept;
  nlohmann::ordered_json json{{"facts",
                               {{"num_tokens", facts_.num_tokens},
                                {"num_labels", facts_.num_labels},
                                {"sequence_size", facts_.sequence_size},
                                {"zero_stage", facts_.zero_stage},
                                {"shard_size", facts_.shard_size},
                                {"kept_mlp_layers", kept}}},
                              {"device", account_.device},
                              {"host", account_.host},
                              {"beside_tensors", account_.beside_tensors},
                              {"activation_bytes_per_token", account_.activation_bytes_per_token}};
  for (const MemoryAccount::Line& line : account_.lines) {
    std::string name = line.name;
    name.erase(0, name.find_first_not_of(' '));
    json["account"].push_back(
        {{"name", name}, {"device", line.device}, {"host", line.host}, {"note", line.note}});
  }
  for (const MeasuredPeak& peak : measured_) {
    json["measured"].push_back({{"device", peak.device},
                                {"host", peak.host},
                                {"resident", peak.resident},
                                {"reserved", peak.reserved}});
  }
  write_file_atomically(folder + "/memory.json", json.dump(1) + "\n");
}

}  // namespace longspan
