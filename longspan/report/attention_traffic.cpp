#include "longspan/report/attention_traffic.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

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

nlohmann::ordered_json json_of(const Direction& direction) {
  nlohmann::ordered_json json;
  for (const TrafficColumn& column : kCollectives) json[column.name] = direction.*column.bytes;
  json["measured"] = direction.measured();
  json["formula"] = direction.formula;
  if (direction.features != 0) json["features_of_pictures"] = direction.features;
  return json;
}

}  // namespace

AttentionTraffic::AttentionTraffic(const Mesh& mesh, const ParallelPlan& plan,
                                   const ModelSpec& model, const Sending& sending,
                                   at::Device device)
    : plan_(plan),
      sending_(sending),
      device_(device),
      // Every member of a sequence group holds the whole row; only one counts it.
      counts_rows_(mesh.sequence.rank() == 0),
      mesh_(mesh) {
  mine_.choice = plan.reason;
  const std::vector<int64_t> counts = layers_of_pattern(model);
  for (size_t i = 0; i < counts.size(); ++i) {
    layers_.emplace_back(model.pattern[i].mixer, counts[i]);
    num_layers_ += counts[i];
  }
}

void AttentionTraffic::add_to(Direction& direction) {
  const Traffic now = sequence_traffic(mesh_);
  direction.all_to_all += now.all_to_all - before_.all_to_all;
  direction.all_gather += now.all_gather - before_.all_gather;
  direction.reduce_scatter += now.reduce_scatter - before_.reduce_scatter;
  direction.shift += now.shift - before_.shift;
  direction.features += now.features - before_.features;
  before_ = now;
}

void AttentionTraffic::begin_row() { before_ = sequence_traffic(mesh_); }

void AttentionTraffic::end_forward(const Packing& padded) {
  add_to(mine_.forward);
  if (!counts_rows_) return;
  for (const auto& [mixer, count] : layers_) {
    const AttentionVolume volume = mixer_volume(plan_, mixer, padded, sending_.element_bytes,
                                                sending_.checkpointing, sending_.output_is_known);
    mine_.forward.formula += count * volume.forward;
    mine_.backward.formula += count * volume.backward;
  }
  mine_.num_rows += 1;
  mine_.num_tokens += padded.num_tokens();
}

void AttentionTraffic::end_backward() { add_to(mine_.backward); }

AttentionTraffic::Report AttentionTraffic::report(const Group& world) const {
  Report report = mine_;
  std::vector<int64_t*> numbers, of_layers;
  for (Direction* direction : {&report.forward, &report.backward}) {
    of_layers.push_back(&direction->formula);
    for (const TrafficColumn& column : kCollectives)
      of_layers.push_back(&(direction->*column.bytes));
  }
  numbers = of_layers;
  numbers.insert(numbers.end(), {&report.num_rows, &report.num_tokens, &report.forward.features,
                                 &report.backward.features});
  std::vector<int64_t> values;
  for (const int64_t* number : numbers) values.push_back(*number);
  at::Tensor sums = at::tensor(values, at::kLong);
  if (world.size() > 1) {
    sums = sums.to(device_);
    world.sum_(sums);
    sums = sums.cpu();
  }
  for (size_t i = 0; i < numbers.size(); ++i) *numbers[i] = sums.const_data_ptr<int64_t>()[i];
  for (int64_t* number : of_layers) *number /= std::max<int64_t>(1, num_layers_);
  return report;
}

std::string table_of(const AttentionTraffic::Report& report) {
  if (report.forward.formula == 0 && report.forward.measured() == 0) return "";
  std::string text = fmt::format(
      "{}\nSent to other processes by the attention of a layer, bytes in all, {} of {} "
      "together:\n{:8}",
      report.choice, counted(report.num_rows, "row"), counted(report.num_tokens, "token"), "");
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> rows(2);
  const auto add = [&](const char* name, int64_t forward, int64_t backward) {
    names.emplace_back(name);
    rows[0].push_back(forward);
    rows[1].push_back(backward);
  };
  for (const TrafficColumn& column : kCollectives) {
    const int64_t forward = report.forward.*column.bytes, backward = report.backward.*column.bytes;
    if (forward != 0 || backward != 0) add(column.name, forward, backward);
  }
  add("measured", report.forward.measured(), report.backward.measured());
  add("formula", report.forward.formula, report.backward.formula);
  for (const std::string& name : names) text += fmt::format("{:>20}", name);
  for (const auto& [name, numbers] : {std::pair{"forward", rows[0]}, {"backward", rows[1]}}) {
    text += fmt::format("\n{:8}", name);
    for (const int64_t number : numbers) text += fmt::format("{:>20}", with_commas(number));
  }
  if (report.forward.features + report.backward.features > 0) {
    text +=
        fmt::format("\nFeatures of pictures, all layers: {} forward, {} backward",
                    with_commas(report.forward.features), with_commas(report.backward.features));
  }
  return text;
}

void write_report(const std::string& folder, const AttentionTraffic::Report& report) {
  nlohmann::ordered_json json;
  json["choice"] = report.choice;
  json["rows"] = report.num_rows;
  json["padded_tokens"] = report.num_tokens;
  json["bytes_per_layer"] = {{"forward", json_of(report.forward)},
                             {"backward", json_of(report.backward)}};
  write_file_atomically(folder + "/sequence_parallel.json", json.dump(2) + "\n");
}

}  // namespace longspan
