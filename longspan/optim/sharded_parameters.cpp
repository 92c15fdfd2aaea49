#include "longspan/optim/sharded_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>

#include "longspan/optim/gradient_norm.h"

namespace longspan {
namespace {

int top_unit_of(const std::vector<ParameterSource>& sources) {
  int top = kEmbeddingUnit;
  for (const ParameterSource& source : sources) {
    if (source.spec.part == ModelPart::kLanguage) top = std::max(top, source.spec.unit);
  }
  return top;
}

}  // namespace

struct ShardedParameters::Unit {
  std::vector<FlatParameters*> flats;
};

ShardedParameters::ShardedParameters(const std::vector<ParameterSource>& sources,
                                     const ShardingOptions& options)
    : options_(options),
      side_(options.device),
      reducing_side_(options.device),
      last_(top_unit_of(sources)) {
  const auto shard_of = [&](const ParameterSpec& parameter) -> const Group& {
    return options.shares_out(parameter) ? options.expert_shard : options.shard;
  };
  // With one rank and values on the device, the share is the whole buffer and stays.
  const auto is_gathered = [&](const ParameterSpec& parameter) {
    return options.stage >= 3 && parameter.unit != kAlwaysThere &&
           (shard_of(parameter).size() > 1 || options.offload_params);
  };
  // If the masters are separate, the values at use may be less precise.
  const auto whole_dtype = [&](const ParameterSource& source, bool apart) {
    const bool cast = apart && is_copied_for_use(source.spec) && source.dtype == at::kFloat;
    return cast ? options.compute_dtype : source.dtype;
  };
  // Flat buffers group parameters of one unit and dtype, all trained or none, all of distributed
  // experts or none.
  using Key = std::tuple<int, bool, at::ScalarType, at::ScalarType, bool>;
  std::map<Key, std::vector<size_t>> members;
  int num_units = 0;
  std::vector<const ParameterSource*> own;  // of parameters_
  for (const ParameterSource& source : sources) {
    const int unit = source.spec.unit;
    num_units = std::max(num_units, unit + 1);
    const bool gathered = is_gathered(source.spec);
    const bool used_alone =
        options.stage >= 1 && shard_of(source.spec).size() > 1 && !options.saves_masters;
    const bool apart = gathered || (source.trained && (options.offload_optimizer || used_alone));
    const bool sharded = source.trained || gathered;
    all_specs_.push_back(source.spec);
    used_dtypes_.push_back(sharded ? whole_dtype(source, apart) : source.dtype);
    if (!options.is_here(source.spec)) continue;
    if (sharded) {
      members[{unit, source.trained, source.dtype, used_dtypes_.back(),
               options.shares_out(source.spec)}]
          .push_back(own.size());
    }
    own.push_back(&source);
    specs_.push_back(source.spec);
    parameters_.push_back(
        {source.spec.name, sharded ? at::Tensor() : source.make().to(options.device)});
  }
  flat_of_parameter_.assign(own.size(), -1);
  units_.resize(num_units);
  for (const auto& [key, indices] : members) {
    const auto& [unit, trained, dtype, whole, of_experts] = key;
    FlatOptions flat{.shard = of_experts ? options.expert_shard : options.shard,
                     .replicas = of_experts ? options.expert_replicas : options.replicas,
                     .device = options.device,
                     .dtype = dtype,
                     .whole_dtype = whole,
                     .trained = trained,
                     .chunk_bytes = options.chunk_bytes};
    flat.gathered_for_use = is_gathered(own[indices[0]]->spec);
    flat.scattered_at_once = trained && options.stage >= 2 && unit != kAlwaysThere;
    const bool host_values = flat.gathered_for_use && options.offload_params;
    flat.masters_on_host = host_values || (trained && options.offload_optimizer);
    flat.share_on_device = flat.gathered_for_use && flat.masters_on_host && !host_values;
    std::vector<const ParameterSource*> its_sources;
    for (const size_t i : indices) its_sources.push_back(own[i]);
    flats_.push_back(std::make_unique<FlatParameters>(its_sources, flat));
    for (size_t m = 0; m < indices.size(); ++m) {
      parameters_[indices[m]].tensor = flats_.back()->parameters()[m];
      flat_of_parameter_[indices[m]] = static_cast<int>(flats_.size()) - 1;
    }
    if (unit != kAlwaysThere) units_[unit].flats.push_back(flats_.back().get());
    if (trained && !flat.scattered_at_once) {
      const bool language = own[indices[0]]->spec.part == ModelPart::kLanguage;
      summed_once_.push_back({flats_.back().get(), language ? unit : kAlwaysThere});
    }
  }
  std::ranges::stable_sort(summed_once_, std::greater(), &SummedOnce::unit);
}

ShardedParameters::~ShardedParameters() = default;

std::vector<ParameterShard> ShardedParameters::shards() const {
  std::vector<ParameterShard> shards;
  for (const auto& flat : flats_) {
    if (!flat->options().trained) continue;
    shards.insert(shards.end(), flat->shards().begin(), flat->shards().end());
  }
  return shards;
}

void ShardedParameters::over_wholes(const std::function<bool(const ParameterSpec&)>& is_wanted,
                                    const WholeWork& work) {
  std::vector<std::vector<const ParameterSpec*>> members(flats_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (flat_of_parameter_[i] >= 0) members[flat_of_parameter_[i]].push_back(&specs_[i]);
  }
  size_t first = 0;  // index of the flat's first shard among all shards
  for (size_t f = 0; f < flats_.size(); ++f) {
    FlatParameters& flat = *flats_[f];
    if (!flat.options().trained) continue;
    flat.over_wholes(
        [&](size_t source) { return is_wanted(*members[f][source]); },
        {.dtype = work.dtype,
         .make = [&](size_t shard) { return work.make(first + shard); },
         .use = [&](size_t shard, const at::Tensor& whole) { work.use(first + shard, whole); }});
    first += flat.shards().size();
  }
}

ShardedParameters::HeldBytes ShardedParameters::held_bytes() const {
  HeldBytes held;
  for (const auto& flat : flats_) {
    held.device += flat->device_bytes();
    held.host += flat->host_bytes();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (flat_of_parameter_[i] >= 0) continue;
    held.device += static_cast<int64_t>(parameters_[i].tensor.nbytes());
  }
  return held;
}

ShardedParameters::Unit* ShardedParameters::unit(int number) {
  return number >= 0 && number < static_cast<int>(units_.size()) ? &units_[number] : nullptr;
}

void ShardedParameters::before(int number, Use use, int next) {
  Unit& current = units_.at(number);
  if (use != Use::kGradients) {
    for (FlatParameters* flat : current.flats) flat->gather(side_);
  }
  if (Unit* following = unit(next)) {
    for (FlatParameters* flat : following->flats) flat->start_gather(side_);
  }
  begin_reductions();
  last_.before(number, use);
  if (use == Use::kForward) return;
  for (FlatParameters* flat : current.flats) flat->open_gradients();
  if (std::find(in_backward_.begin(), in_backward_.end(), number) == in_backward_.end()) {
    in_backward_.push_back(number);
  }
}

void ShardedParameters::after(int number, Use use) {
  Unit& current = units_.at(number);
  for (FlatParameters* flat : current.flats) flat->release();
  if (use == Use::kForward) return;
  std::erase(in_backward_, number);
  last_.after(number, use);
  advance_reductions();
  close(number);
}

void ShardedParameters::close(int number) {
  const bool is_last = last_.is_complete(number);
  for (FlatParameters* flat : units_[number].flats) {
    if (flat->options().scattered_at_once && flat->gradients_are_open()) {
      closed_.push_back({flat, is_last});
    }
  }
  if (!is_last) return;
  for (; next_sum_ < summed_once_.size() && summed_once_[next_sum_].unit >= number; ++next_sum_) {
    closed_.push_back({summed_once_[next_sum_].flat, is_last});
  }
}

void ShardedParameters::begin_reductions() {
  for (const auto& [flat, is_last] : std::exchange(closed_, {})) {
    flat->start_reduction(reducing_side_, is_last);
    reducing_.push_back(flat);
  }
}

/// Completes the previous unit's reduction when the next one starts.
void ShardedParameters::advance_reductions() {
  for (FlatParameters* flat : std::exchange(landing_, {})) flat->land(reducing_side_);
  for (FlatParameters* flat : std::exchange(reducing_, {})) {
    flat->finish_reduction(reducing_side_);
    landing_.push_back(flat);
  }
}

void ShardedParameters::end_backward() {
  begin_reductions();
  for (const int number : std::exchange(in_backward_, {})) {
    for (FlatParameters* flat : units_[number].flats) flat->release();
    advance_reductions();
    last_.after(number, Use::kBackward);
    close(number);
    begin_reductions();
  }
}

void ShardedParameters::begin_last_row() { last_.begin(); }

void ShardedParameters::start_sums() {
  last_.end();
  while (next_sum_ < summed_once_.size()) {
    advance_reductions();
    // All buffers of a unit together, as in a backward, so that the collectives of all groups have
    // one order on ranks with and without rows.
    const int unit = summed_once_[next_sum_].unit;
    for (; next_sum_ < summed_once_.size() && summed_once_[next_sum_].unit == unit; ++next_sum_) {
      closed_.push_back({summed_once_[next_sum_].flat, /*is_last=*/true});
    }
    begin_reductions();
  }
}

void ShardedParameters::complete_reductions() {
  advance_reductions();
  advance_reductions();
  reducing_side_.join();  // with the sums over the replicas
  next_sum_ = 0;
}

void ShardedParameters::finish_gradients() {
  begin_reductions();
  start_sums();
  complete_reductions();
  for (const auto& flat : flats_) flat->finish_gradients();
}

namespace {

/// Sums `sum` over the ranks of each copy, and gives all copies the sum of the first one: a sum on
/// other machines may have another order, and copies that clip by other norms would drift apart.
void sum_as_first_copy(const at::Tensor& sum, std::initializer_list<const Group*> of_copy,
                       const Group& copies) {
  for (const Group* group : of_copy) group->sum_(sum);
  if (copies.size() == 1) return;
  if (copies.rank() != 0) sum.zero_();
  copies.sum_(sum);
}

}  // namespace

double ShardedParameters::gradient_norm() const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, of_experts;
  for (const ParameterShard& shard : shards()) {
    (options_.shares_out(shard.spec) ? of_experts : gradients).push_back(shard.values.grad());
  }
  const at::Tensor sum = sum_of_squares(gradients, options_.device);
  sum_as_first_copy(sum, {&options_.shard}, options_.replicas);
  if (options_.experts.size() == 1) return std::sqrt(sum.item<double>());
  const at::Tensor expert_sum = sum_of_squares(of_experts, options_.device);
  sum_as_first_copy(expert_sum, {&options_.expert_shard, &options_.experts},
                    options_.expert_replicas);
  return std::sqrt((sum + expert_sum).item<double>());
}

void ShardedParameters::scale_gradients(double factor) {
  const c10::NoGradGuard no_grad;
  for (const ParameterShard& shard : shards()) {
    if (shard.values.grad().defined()) shard.values.grad().mul_(factor);
  }
}

void ShardedParameters::drop_gradients() {
  // If a step is abandoned, reductions may be in progress.
  closed_.clear();
  last_.end();
  complete_reductions();
  for (const auto& flat : flats_) flat->drop_gradients();
}

void ShardedParameters::publish() {
  for (const auto& flat : flats_) {
    if (flat->options().trained) flat->publish(side_);
  }
}

void ShardedParameters::for_each_whole(const std::function<void(const NamedTensor&)>& see,
                                       const std::function<bool(const ParameterSpec&)>& is_wanted) {
  const c10::NoGradGuard no_grad;
  const auto wants = [&](const ParameterSpec& parameter) {
    return !is_wanted || is_wanted(parameter);
  };
  // A flat is gathered at its first parameter and released after its last.
  std::vector<int> num_left(flats_.size(), 0);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (const int flat = flat_of_parameter_[i]; flat >= 0 && wants(specs_[i])) ++num_left[flat];
  }
  size_t next = 0;  // index in parameters_
  for (size_t i = 0; i < all_specs_.size(); ++i) {
    const ParameterSpec& spec = all_specs_[i];
    const bool here = options_.is_here(spec);
    const size_t own = next;
    if (here) ++next;
    if (!wants(spec)) continue;
    const int flat = here ? flat_of_parameter_[own] : -1;
    if (flat >= 0) flats_[flat]->gather(side_);
    const at::Tensor whole =
        here ? parameters_[own].tensor.detach()
             : at::empty(spec.shape, at::TensorOptions(options_.device).dtype(used_dtypes_[i]));
    if (options_.shares_out(spec)) {
      options_.experts.broadcast_(whole, place_of(*spec.expert, options_.experts.size()));
    }
    see({spec.name, whole});
    if (flat >= 0 && --num_left[flat] == 0) flats_[flat]->release();
  }
}

}  // namespace longspan
