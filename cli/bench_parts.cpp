#include "cli/bench_parts.h"

#include <fmt/format.h>

#include <cstdio>
#include <system_error>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

constexpr int kDefaultRanks = 2;
constexpr int64_t kMostRanks = 4096;

}  // namespace

void make_output_folder(const std::string& command, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder)) {
    throw UserError(fmt::format("{}: cannot make the folder --output {}: {}", command,
                                folder.string(), error.message()));
  }
}

DeviceChoice read_device(const std::string& command, const Options& options) {
  ModelSettings wanted;
  wanted.device = options.text("device").value_or("auto");
  wanted.share_gpus = options.flag("share-gpus");
  if (const std::string& word = wanted.device; word != "auto" && word != "cuda" && word != "cpu") {
    throw UserError(
        fmt::format("{}: --device {}: choose auto, cuda or cpu", command, wanted.device));
  }
  return choose_device(wanted, find_gpus);
}

LaunchPlan plan_bench(const std::string& command, const Options& options,
                      const DeviceChoice& device) {
  LaunchPlan plan = make_launch_plan(Config().parallel, device);
  const std::optional<int64_t> ranks = options.whole_number("ranks", 1, kMostRanks);
  const int wanted =
      ranks ? static_cast<int>(*ranks)
            : (plan.world_size() > 1 || device.cuda() ? plan.world_size() : kDefaultRanks);
  if (wanted % plan.num_nodes != 0) {
    throw UserError(fmt::format("{}: --ranks {} cannot be spread evenly over NNODES={}", command,
                                wanted, plan.num_nodes));
  }
  plan.processes_per_node = wanted / plan.num_nodes;
  require_gpus(device, plan.processes_per_node);
  return plan;
}

void say_bench(const std::string& line) {
  print_out("{}\n", line);
  std::fflush(stdout);
}

}  // namespace longspan
