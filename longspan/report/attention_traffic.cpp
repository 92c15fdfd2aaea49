#include "longspan/report/attention_traffic.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/files/atomic_file.h"
#include "longspan/plan/mixer_exchange.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {
namespace {

using Direction = AttentionTraffic::Direction;

struct TrafficColumn {
  const char* name;
  int64_t Direction::* bytes;
};
constexpr TrafficColumn kCollectives[] = {{"all_to_all", &Direction::all_to_all},
                                          {"all_gather", &Direction::all_gather},
                                          {"reduce_scatter", &Direction::reduce_scatter},
                                          {"shift", &Direction::shift}};

/// A number of the communication layer, and its place in the report.
struct Counter {
  int64_t Traffic::* sent;
  int64_t Direction::* bytes;
};
constexpr Counter kCounters[] = {{&Traffic::all_to_all, &Direction::all_to_all},
                                 {&Traffic::all_gather, &Direction::all_gather},
                                 {&Traffic::reduce_scatter, &Direction::reduce_scatter},
                                 {&Traffic::shift, &Direction::shift},
                                 {&Traffic::features, &Direction::features}};

/// The directions of a report that have bytes, with their names.
std::vector<std::pair<const char*, const Direction*>> directions_of(
    const AttentionTraffic::Report& report) {
  std::vector<std::pair<const char*, const Direction*>> directions{{"forward", &report.forward},
                                                                   {"backward", &report.backward}};
  const Direction& reference = report.reference;
  if (reference.formula > 0 || reference.measured() > 0) {
    directions.emplace_back("reference", &reference);
  }
  return directions;
}

nlohmann::ordered_json json_of(const Direction& direction) {
  nlohmann::ordered_json json;
  for (const TrafficColumn& column : kCollectives) json[column.name] = direction.*column.bytes;
  json["measured"] = direction.measured();
  json["formula"] = direction.formula;
  if (direction.features != 0) json["features_of_pictures"] = direction.features;
  return json;
}

}  // namespace

AttentionTraffic::Mixers::Mixers(const Sender& sender) : plan(sender.plan) {
  const std::vector<int64_t> counts = layers_of_pattern(sender.model);
  for (size_t i = 0; i < counts.size(); ++i) {
    layers.emplace_back(sender.model.pattern[i].mixer, counts[i]);
    num_layers += counts[i];
  }
}

AttentionVolume AttentionTraffic::Mixers::volume(const Packing& padded,
                                                 const Sending& sending) const {
  AttentionVolume sum;
  for (const auto& [mixer, count] : layers) {
    const AttentionVolume one = mixer_volume(plan, mixer, padded, sending.element_bytes,
                                             sending.checkpointing, sending.output_is_known);
    sum.forward += count * one.forward;
    sum.backward += count * one.backward;
  }
  return sum;
}

AttentionTraffic::AttentionTraffic(const Mesh& mesh, const Sender& policy, const Sender& reference,
                                   const Sending& sending, at::Device device)
    : policy_(policy),
      reference_(reference),
      sending_(sending),
      device_(device),
      // Every member of a sequence group holds the whole row; only one counts it.
      counts_rows_(mesh.sequence.rank() == 0),
      mesh_(mesh) {
  mine_.choice = policy.plan.reason;
}

Traffic AttentionTraffic::add_to(Direction& direction, const Traffic& begin) const {
  const Traffic now = sequence_traffic(mesh_);
  for (const Counter& counter : kCounters) {
    direction.*counter.bytes += now.*counter.sent - begin.*counter.sent;
  }
  return now;
}

void AttentionTraffic::begin_row() { before_ = sequence_traffic(mesh_); }

void AttentionTraffic::end_forward(const Packing& padded) {
  before_ = add_to(mine_.forward, before_);
  if (!counts_rows_) return;
  const AttentionVolume volume = policy_.volume(padded, sending_);
  mine_.forward.formula += volume.forward;
  mine_.backward.formula += volume.backward;
  mine_.num_rows += 1;
  mine_.num_tokens += padded.num_tokens();
}

void AttentionTraffic::end_backward() { before_ = add_to(mine_.backward, before_); }

void AttentionTraffic::begin_reference() { before_reference_ = sequence_traffic(mesh_); }

void AttentionTraffic::end_reference(const Packing& padded) {
  const Traffic now = add_to(mine_.reference, before_reference_);
  for (const Counter& counter : kCounters) {
    before_.*counter.sent += now.*counter.sent - before_reference_.*counter.sent;
  }
  if (counts_rows_) mine_.reference.formula += reference_.volume(padded, sending_).forward;
}

AttentionTraffic::Report AttentionTraffic::report(const Group& world) const {
  Report report = mine_;
  // A number, and the layers whose sum it is; 0: no sum over layers.
  std::vector<std::pair<int64_t*, int64_t>> numbers{{&report.num_rows, 0}, {&report.num_tokens, 0}};
  for (const auto& [direction, num_layers] : {std::pair{&report.forward, policy_.num_layers},
                                              {&report.backward, policy_.num_layers},
                                              {&report.reference, reference_.num_layers}}) {
    numbers.emplace_back(&direction->features, 0);
    numbers.emplace_back(&direction->formula, num_layers);
    for (const TrafficColumn& column : kCollectives) {
      numbers.emplace_back(&(direction->*column.bytes), num_layers);
    }
  }
  std::vector<int64_t> values;
  for (const auto& [number, num_layers] : numbers) values.push_back(*number);
  at::Tensor sums = at::tensor(values, at::kLong);
  if (world.size() > 1) {
    sums = sums.to(device_);
    world.sum_(sums);
    sums = sums.cpu();
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto& [number, num_layers] = numbers[i];
    *number = sums.const_data_ptr<int64_t>()[i] / std::max<int64_t>(1, num_layers);
  }
  return report;
}

std::string table_of(const AttentionTraffic::Report& report) {
  if (report.forward.formula == 0 && report.forward.measured() == 0) return "";
  std::string text = fmt::format(
      "{}\nSent to other processes by the attention of a layer, bytes in all, {} of {} "
      "together:\n{:9}",
      report.choice, counted(report.num_rows, "row"), counted(report.num_tokens, "token"), "");
  const auto directions = directions_of(report);
  std::vector<std::string> rows, features;
  for (const auto& [name, direction] : directions) {
    rows.push_back(fmt::format("\n{:9}", name));
    if (direction->features > 0) {
      features.push_back(fmt::format("{} {}", with_commas(direction->features), name));
    }
  }
  const auto add = [&](const char* name, const auto& bytes_of) {
    text += fmt::format("{:>20}", name);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] += fmt::format("{:>20}", with_commas(bytes_of(*directions[i].second)));
    }
  };
  for (const TrafficColumn& column : kCollectives) {
    const auto bytes_of = [&](const Direction& direction) { return direction.*column.bytes; };
    if (std::ranges::any_of(directions, [&](const auto& d) { return bytes_of(*d.second) != 0; })) {
      add(column.name, bytes_of);
    }
  }
  add("measured", [](const Direction& direction) { return direction.measured(); });
  add("formula", [](const Direction& direction) { return direction.formula; });
  for (const std::string& row : rows) text += row;
  if (!features.empty()) {
    text += fmt::format("\nFeatures of pictures, all layers: {}", fmt::join(features, ", "));
  }
  return text;
}

void write_report(const std::string& folder, const AttentionTraffic::Report& report) {
  nlohmann::ordered_json json;
  json["choice"] = report.choice;
  json["rows"] = report.num_rows;
  json["padded_tokens"] = report.num_tokens;
  for (const auto& [name, direction] : directions_of(report)) {
    json["bytes_per_layer"][name] = json_of(*direction);
  }
  write_file_atomically(folder + "/sequence_parallel.json", json.dump(2) + "\n");
}

}  // namespace longspan
