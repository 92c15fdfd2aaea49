#include "longspan/saving/sharded_saving.h"

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/chat_files.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/composite.h"

namespace longspan {
namespace {

/// Returns the rank that writes each parameter: runs of neighbours of about equal bytes; parts of
/// one stored tensor go to the same file.
std::vector<int> writers_of(const std::vector<ParameterSpec>& parameters, int num_ranks) {
  int64_t total = 0, before = 0;
  for (const ParameterSpec& parameter : parameters) total += parameter.num_elements();
  std::vector<int> writers;
  for (const ParameterSpec& parameter : parameters) {
    if (!begins_stored(parameter)) {
      writers.push_back(writers.back());
      before += parameter.num_elements();
      continue;
    }
    // Assigns a parameter by its middle, so that a large one does not go to a rank that is already
    // full.
    const int64_t middle = before + parameter.num_elements() / 2;
    writers.push_back(static_cast<int>(
        std::min<int64_t>(num_ranks - 1, middle * num_ranks / std::max<int64_t>(1, total))));
    before += parameter.num_elements();
  }
  return writers;
}

/// Returns the path of this rank's weight file once the folder is visible: on a network disk, a
/// folder that rank 0 has just made may appear late.
std::string weight_path(const std::string& folder, const GatheredModel& gathered, int rank) {
  std::error_code error;
  for (int i = 0; i < 10; ++i) {
    if (std::filesystem::is_directory(folder, error)) return folder + "/" + gathered.file;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw UserError(fmt::format(
      "Rank {} does not see {}. With zero_stage: 3 or an expert_parallel_size every process writes "
      "a part of the model, so output_dir must be on a disk that all of them share.",
      rank, folder));
}

/// The rank that writes a parameter, and the round in which the rank gets the values.
struct WeightPlace {
  int writer = 0;
  int64_t round = 0;
};

/// The weight files of all ranks.
struct WeightPlan {
  GatheredModel gathered;                     // without values
  std::map<std::string, WeightPlace> places;  // by parameter
  int64_t num_rounds = 0;
};

/// A rank gets about `round_bytes` in a round.
WeightPlan plan_weights(const SavedModel& model, const ShardedParameters& parameters,
                        const Group& world, int64_t round_bytes) {
  WeightPlan plan;
  std::vector<ParameterSpec> own;
  for (const ParameterSpec& parameter : parameters.all_specs()) {
    if (!is_value_head(parameter.role)) own.push_back(parameter);
  }
  const std::vector<int> writers = writers_of(own, world.size());
  // Ranks without parameters have no file.
  std::map<int, int> number_of;
  for (const int writer : writers) {
    number_of.try_emplace(writer, static_cast<int>(number_of.size()) + 1);
  }
  const int num_files = static_cast<int>(number_of.size()) + num_copied_files(model.config);
  std::vector<int64_t> bytes(static_cast<size_t>(world.size()), 0);  // so far, by writer
  for (size_t i = 0; i < own.size(); ++i) {
    const ParameterSpec& parameter = own[i];
    const at::ScalarType dtype = stored_dtype(parameter, model.dtype);
    int64_t& before = bytes[static_cast<size_t>(writers[i])];
    plan.places[parameter.name] = {writers[i], before / round_bytes};
    plan.num_rounds = std::max(plan.num_rounds, before / round_bytes + 1);
    before += parameter.num_elements() * static_cast<int64_t>(c10::elementSize(dtype));
    if (!begins_stored(parameter)) continue;
    const std::string name = name_in_files(model.config, parameter.stored_as);
    const std::vector<int64_t> shape = stored_shape(parameter);
    const std::string file = weight_file_name(number_of.at(writers[i]), num_files);
    plan.gathered.files.push_back({{name, shape}, file});
    if (writers[i] == world.rank()) {
      plan.gathered.file = file;
      plan.gathered.planned.push_back({name, dtype, shape});
    }
  }
  return plan;
}

/// Gathers the parameters of a round, and copies this rank's. Collective.
void gather_round(WeightPlan& plan, int64_t round, const SavedModel& model,
                  ShardedParameters& parameters, const Group& world, HostCopies& copies) {
  GatheredModel& gathered = plan.gathered;
  parameters.for_each_whole(
      [&](const NamedTensor& whole) {
        if (plan.places.at(whole.name).writer != world.rank() || gathered.failure) return;
        try {
          const ParameterSpec& parameter = model.specs.of(whole.name);
          gathered.weights.push_back(
              copies.add(as_stored(parameter, whole.tensor), stored_dtype(parameter, model.dtype)));
        } catch (...) {
          gathered.failure = std::current_exception();  // the rank takes part in all gathers
        }
      },
      [&](const ParameterSpec& parameter) {
        const auto place = plan.places.find(parameter.name);
        return place != plan.places.end() && place->second.round == round;
      });
}

/// Adds the tensors that rank 0 writes besides weight files. Collective.
void gather_rest(GatheredModel& gathered, const SavedModel& model, ShardedParameters& parameters,
                 const Group& world, HostCopies& copies) {
  const auto add = [&](std::vector<NamedTensor>& to, const NamedTensor& whole) {
    if (world.rank() != 0 || gathered.failure) return;
    try {
      to.push_back({whole.name, copies.add(whole.tensor, whole.tensor.scalar_type())});
    } catch (...) {
      gathered.failure = std::current_exception();
    }
  };
  if (model.lora) {
    parameters.for_each_whole(
        [&](const NamedTensor& whole) { add(gathered.adapter, whole); },
        [&](const ParameterSpec& parameter) { return is_of_adapter(model, parameter.name); });
  }
  for (const NamedTensor& whole : value_head_among(parameters.parameters(), model.specs)) {
    add(gathered.value_head, whole);
  }
}

}  // namespace

bool is_of_adapter(const SavedModel& model, const std::string& name) {
  const ParameterSpec& parameter = model.specs.of(name);
  return is_lora(parameter.role) || model.lora->trains_whole(parameter);
}

std::vector<NamedTensor> gathered_adapter(const SavedModel& model, ShardedParameters& parameters,
                                          const Group& world) {
  GatheredModel gathered;
  HostCopies copies(at::kCPU);
  gather_rest(gathered, model, parameters, world, copies);
  if (gathered.failure) std::rethrow_exception(gathered.failure);
  return std::move(gathered.adapter);
}

GatheredModel gather_model(const SavedModel& model, ShardedParameters& parameters,
                           const Group& world, HostCopies& copies) {
  WeightPlan plan;
  if (!model.lora) {
    plan = plan_weights(model, parameters, world, /*round_bytes=*/INT64_MAX);
    gather_round(plan, /*round=*/0, model, parameters, world, copies);
  }
  gather_rest(plan.gathered, model, parameters, world, copies);
  return std::move(plan.gathered);
}

GatheredModel write_weights(const std::string& folder, const SavedModel& model,
                            ShardedParameters& parameters, const Group& world, Notices& notices,
                            int64_t round_bytes) {
  WeightPlan plan;
  GatheredModel& gathered = plan.gathered;
  HostCopies copies(at::kCPU);
  if (!model.lora) {
    plan = plan_weights(model, parameters, world, round_bytes);
    std::optional<SafetensorsWriter> file;
    for (int64_t round = 0; round < plan.num_rounds; ++round) {
      copies.restart();
      gather_round(plan, round, model, parameters, world, copies);
      all_or_none_patiently(world, notices, [&] {
        if (gathered.failure) std::rethrow_exception(gathered.failure);
        if (gathered.file.empty()) return;
        if (!file) file.emplace(weight_path(folder, gathered, world.rank()), gathered.planned);
        for (const at::Tensor& weights : std::exchange(gathered.weights, {})) file->write(weights);
        if (round + 1 == plan.num_rounds) file->commit();
      });
    }
    gathered.planned.clear();
  }
  gather_rest(gathered, model, parameters, world, copies);
  return std::move(gathered);
}

void write_gathered(const std::string& folder, const SavedModel& model,
                    const GatheredModel& gathered, int rank) {
  if (gathered.failure) std::rethrow_exception(gathered.failure);
  if (!gathered.planned.empty()) {
    SafetensorsWriter file(weight_path(folder, gathered, rank), gathered.planned);
    for (const at::Tensor& weights : gathered.weights) file.write(weights);
    file.commit();
  }
  if (rank != 0) return;
  if (model.lora) {
    save_adapter(folder, model.config, {*model.lora, gathered.adapter}, model.dtype,
                 model.source_folder, model.pissa ? model.pissa->name : "");
    save_positions(folder, model.config, model.source_folder);
  } else {
    save_model_files(folder, model.config, model.dtype, model.source_folder, gathered.files);
  }
  save_value_head(folder, gathered.value_head);
  write_added_tokens(folder, model.added);
  if (model.chat) write_chat(folder, *model.chat);
}

void write_sharded_model(const std::string& folder, const SavedModel& model,
                         ShardedParameters& parameters, const Group& world, Notices& notices) {
  const GatheredModel gathered = write_weights(folder, model, parameters, world, notices);
  all_or_none_patiently(world, notices,
                        [&] { write_gathered(folder, model, gathered, world.rank()); });
}

}  // namespace longspan
