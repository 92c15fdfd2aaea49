#include "longspan/report/expert_traffic.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "longspan/files/atomic_file.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

namespace {

ExpertShape shape_of(const ModelSpec& model, int64_t element_bytes) {
  ExpertShape shape{.hidden_size = model.hidden_size, .element_bytes = element_bytes};
  for (const LayerSpec& layer : model.pattern) {
    if (const MixtureOfExpertsSpec* mixture = experts_of(layer)) {
      shape.num_experts = mixture->num_experts;
    }
  }
  return shape;
}

/// The directions of a report that have bytes, with their names.
std::vector<std::pair<const char*, ExpertTraffic::Direction>> directions_of(
    const ExpertTraffic::Report& report) {
  std::vector<std::pair<const char*, ExpertTraffic::Direction>> directions{
      {"forward", report.forward}, {"backward", report.backward}};
  if (report.reference.formula > 0 || report.reference.measured > 0) {
    directions.emplace_back("reference", report.reference);
  }
  return directions;
}

}  // namespace

ExpertTraffic::ExpertTraffic(const ExpertParallel* experts, const ModelSpec& policy,
                             const ModelSpec& reference, int64_t element_bytes, at::Device device)
    : experts_(experts),
      shape_(shape_of(policy, element_bytes)),
      reference_shape_(shape_of(reference, element_bytes)),
      device_(device) {}

void ExpertTraffic::Sent::add(const Sent& begin, const Sent& end) {
  bytes += end.bytes - begin.bytes;
  use.num_rows += end.use.num_rows - begin.use.num_rows;
  use.num_opened += end.use.num_opened - begin.use.num_opened;
}

ExpertTraffic::Sent ExpertTraffic::so_far() const {
  if (experts_ == nullptr) return {};
  return {experts_->group().traffic().all_to_all, experts_->used()};
}

ExpertTraffic::Sent ExpertTraffic::add_to(Sent& sum, const Sent& begin) const {
  const Sent now = so_far();
  sum.add(begin, now);
  return now;
}

void ExpertTraffic::begin_row() { before_ = so_far(); }
void ExpertTraffic::end_forward() { before_ = add_to(forward_, before_); }
void ExpertTraffic::end_backward() { before_ = add_to(backward_, before_); }

void ExpertTraffic::begin_reference() { before_reference_ = so_far(); }
void ExpertTraffic::end_reference() {
  before_.add(before_reference_, add_to(reference_, before_reference_));
}

ExpertTraffic::Report ExpertTraffic::report(const Group& world) const {
  if (experts_ == nullptr) return {};
  std::vector<int64_t> values;
  for (const Sent& sent : {forward_, backward_, reference_}) {
    values.insert(values.end(), {sent.bytes, sent.use.num_rows, sent.use.num_opened});
  }
  at::Tensor sums = at::tensor(values, at::kLong).to(device_);
  world.sum_(sums);
  sums = sums.cpu();
  const int64_t* const sum = sums.const_data_ptr<int64_t>();
  const int size = experts_->group().size();
  return {.size = size,
          .num_rows = sum[1],
          .forward = {sum[0], expert_volume(size, shape_, sum[1], sum[2]).forward},
          .backward = {sum[3], expert_volume(size, shape_, sum[4], 0).backward},
          .reference = {sum[6], expert_volume(size, reference_shape_, sum[7], sum[8]).forward}};
}

std::string table_of(const ExpertTraffic::Report& report) {
  if (report.size == 1) return "";
  std::string text = fmt::format(
      "experts: shared out among {} processes\nSent to other processes for their experts, bytes in "
      "all, {}:\n{:9}{:>20}{:>20}",
      report.size, counted(report.num_rows, "row"), "", "measured", "formula");
  for (const auto& [name, direction] : directions_of(report)) {
    text += fmt::format("\n{:9}{:>20}{:>20}", name, with_commas(direction.measured),
                        with_commas(direction.formula));
  }
  return text;
}

void write_report(const std::string& folder, const ExpertTraffic::Report& report) {
  nlohmann::ordered_json json;
  json["expert_parallel_size"] = report.size;
  json["tokens_sent"] = report.num_rows;
  for (const auto& [name, direction] : directions_of(report)) {
    json["bytes"][name] = {{"measured", direction.measured}, {"formula", direction.formula}};
  }
  write_file_atomically(folder + "/expert_parallel.json", json.dump(2) + "\n");
}

}  // namespace longspan
