#include "longspan/saving/sharded_saving.h"

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/chat_files.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
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

/// Waits until the folder is visible: on a network disk, a folder that rank 0 has just made may
/// appear late.
void require_folder(const std::string& folder, int rank) {
  std::error_code error;
  for (int i = 0; i < 10; ++i) {
    if (std::filesystem::is_directory(folder, error)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw UserError(fmt::format(
      "Rank {} does not see {}. With zero_stage: 3 or an expert_parallel_size every process writes "
      "a part of the model, so output_dir must be on a disk that all of them share.",
      rank, folder));
}

std::string write_weights(const std::string& folder, const SavedModel& model,
                          ShardedParameters& parameters, const Group& world, Notices& notices) {
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
  std::vector<std::pair<ParameterShape, std::string>> files;
  std::vector<SafetensorsWriter::Planned> planned;
  for (size_t i = 0; i < own.size(); ++i) {
    const ParameterSpec& parameter = own[i];
    if (!begins_stored(parameter)) continue;
    const std::string name = name_in_files(model.config, parameter.stored_as);
    const std::vector<int64_t> shape = stored_shape(parameter);
    files.push_back({{name, shape}, weight_file_name(number_of.at(writers[i]), num_files)});
    if (writers[i] == world.rank()) {
      planned.push_back({name, stored_dtype(parameter, model.dtype), shape});
    }
  }
  // If this rank's file fails, the rank still takes part in all gathers.
  std::exception_ptr failure;
  const auto attempt = [&](auto&& action) {
    if (failure) return;
    try {
      action();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const std::string name =
      planned.empty() ? "" : weight_file_name(number_of.at(world.rank()), num_files);
  std::optional<SafetensorsWriter> file;
  attempt([&] {
    if (planned.empty()) return;
    require_folder(folder, world.rank());
    file.emplace((std::filesystem::path(folder) / name).string(), planned);
  });
  size_t next = 0;
  parameters.for_each_whole(
      [&](const NamedTensor& whole) {
        if (writers[next++] == world.rank()) {
          attempt([&] { file->write(as_stored(model.specs.of(whole.name), whole.tensor)); });
        }
      },
      [](const ParameterSpec& parameter) { return !is_value_head(parameter.role); });
  attempt([&] {
    if (file) file->commit();
  });
  all_or_none_patiently(world, notices, [&] {
    if (failure) std::rethrow_exception(failure);
  });
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() == 0) {
      save_model_files(folder, model.config, model.dtype, model.source_folder, files);
    }
  });
  return name;
}

void write_adapter(const std::string& folder, const SavedModel& model,
                   ShardedParameters& parameters, const Group& world, Notices& notices) {
  std::vector<NamedTensor> matrices;
  parameters.for_each_whole(
      [&](const NamedTensor& whole) {
        if (world.rank() == 0) matrices.push_back({whole.name, whole.tensor.cpu().clone()});
      },
      [](const ParameterSpec& parameter) { return is_lora(parameter.role); });
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() != 0) return;
    save_adapter(folder, model.config, *model.lora, matrices, model.dtype, model.source_folder);
    save_positions(folder, model.config, model.source_folder);
  });
}

}  // namespace

std::string write_sharded_model(const std::string& folder, const SavedModel& model,
                                ShardedParameters& parameters, const Group& world,
                                Notices& notices) {
  std::string mine;
  if (model.lora) {
    write_adapter(folder, model, parameters, world, notices);
  } else {
    mine = write_weights(folder, model, parameters, world, notices);
  }
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() != 0) return;
    save_value_head(folder, value_head_among(parameters.parameters(), model.specs));
    if (model.chat) write_chat(folder, *model.chat);
  });
  return mine;
}

}  // namespace longspan
