// Parts of the benchmarks' commands: device, launch, output folder.
#pragma once

#include <filesystem>
#include <string>

#include "cli/launcher.h"
#include "cli/options.h"
#include "longspan/cuda/device_choice.h"

namespace longspan {

/// Before any measurement, so that an unwritable folder is not found at the end. Every rank does
/// it, so that none waits for one that failed; creating a folder twice is harmless.
void make_output_folder(const std::string& command, const std::filesystem::path& folder);

/// Returns the device of --device and --share-gpus.
DeviceChoice read_device(const std::string& command, const Options& options);

/// Returns a plan with `--ranks`, or with as many processes as possible.
LaunchPlan plan_bench(const std::string& command, const Options& options,
                      const DeviceChoice& device);

void say_bench(const std::string& line);

}  // namespace longspan
