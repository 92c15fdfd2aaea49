#include "longspan/report/expert_traffic.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "longspan/files/atomic_file.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

ExpertTraffic::ExpertTraffic(const ExpertParallel* experts, const ModelSpec& model,
                             int64_t element_bytes, at::Device device)
    : experts_(experts), device_(device) {
  shape_ = {.hidden_size = model.hidden_size, .element_bytes = element_bytes};
  for (const LayerSpec& layer : model.pattern) {
    if (const MixtureOfExpertsSpec* mixture = experts_of(layer)) {
      shape_.num_experts = mixture->num_experts;
    }
  }
}

ExpertTraffic::Sent ExpertTraffic::so_far() const {
  if (experts_ == nullptr) return {};
  return {experts_->group().traffic().all_to_all, experts_->used()};
}

void ExpertTraffic::add_to(Sent& sum) {
  const Sent now = so_far();
  sum.bytes += now.bytes - before_.bytes;
  sum.use.num_rows += now.use.num_rows - before_.use.num_rows;
  sum.use.num_opened += now.use.num_opened - before_.use.num_opened;
  before_ = now;
}

void ExpertTraffic::begin_row() { before_ = so_far(); }
void ExpertTraffic::end_forward() { add_to(forward_); }
void ExpertTraffic::end_backward() { add_to(backward_); }

ExpertTraffic::Report ExpertTraffic::report(const Group& world) const {
  if (experts_ == nullptr) return {};
  std::vector<int64_t> values;
  for (const Sent& sent : {forward_, backward_}) {
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
          .backward = {sum[3], expert_volume(size, shape_, sum[4], 0).backward}};
}

std::string table_of(const ExpertTraffic::Report& report) {
  if (report.size == 1) return "";
  std::string text = fmt::format(
      "experts: shared out among {} processes\nSent to other processes for their experts, bytes in "
      "all, {}:\n{:8}{:>20}{:>20}",
      report.size, counted(report.num_rows, "row"), "", "measured", "formula");
  for (const auto& [name, direction] :
       {std::pair{"forward", report.forward}, {"backward", report.backward}}) {
    text += fmt::format("\n{:8}{:>20}{:>20}", name, with_commas(direction.measured),
                        with_commas(direction.formula));
  }
  return text;
}

void write_report(const std::string& folder, const ExpertTraffic::Report& report) {
  nlohmann::ordered_json json;
  json["expert_parallel_size"] = report.size;
  json["tokens_sent"] = report.num_rows;
  for (const auto& [name, direction] :
       {std::pair{"forward", report.forward}, {"backward", report.backward}}) {
    json["bytes"][name] = {{"measured", direction.measured}, {"formula", direction.formula}};
  }
  write_file_atomically(folder + "/expert_parallel.json", json.dump(2) + "\n");
}

}  // namespace longspan
