#include "longspan/report/tensorboard.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// A user's folder may hold files of several runs; the suffix identifies the output_dir.
std::string suffix_of(const OutputSettings& config) {
  std::error_code error;
  const std::string path = fs::weakly_canonical(config.output_dir, error).string();
  Xxh64 hash;
  hash.add(path.data(), path.size());
  const bool own = tensorboard_folder(config).starts_with(config.output_dir + "/");
  return own ? "longspan" : fmt::format("longspan-{:08x}", hash.value() & 0xffffffff);
}

}  // namespace

std::string tensorboard_folder(const OutputSettings& config) {
  std::string folder = config.logging_dir;
  if (folder.empty()) folder = config.surroundings.logging_dir;
  if (folder.empty()) folder = config.output_dir + "/runs";
  return config.run_name.empty() ? folder : folder + "/" + config.run_name;
}

std::string tensorboard_tag(const std::string& key) {
  constexpr std::string_view kEvaluation = "eval_";
  return key.starts_with(kEvaluation) ? "eval/" + key.substr(kEvaluation.size()) : "train/" + key;
}

TensorBoardLog::TensorBoardLog(const OutputSettings& config, int64_t last_step)
    : file_(tensorboard_folder(config), suffix_of(config), last_step) {}

std::string TensorBoardLog::add(const LogEntry& entry) {
  std::vector<std::pair<std::string, double>> scalars;
  int64_t step = 0;
  for (const auto& [key, value] : entry) {
    const double number = std::visit([](auto n) { return static_cast<double>(n); }, value);
    if (key == "step") {
      step = std::get<int64_t>(value);
    } else {
      scalars.emplace_back(tensorboard_tag(key), number);
    }
  }
  try {
    file_.add(scalars, step);
    failing_ = false;
  } catch (const UserError& error) {
    if (!std::exchange(failing_, true)) return error.what();
  }
  return "";
}

}  // namespace longspan
