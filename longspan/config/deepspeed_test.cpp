#include "longspan/config/deepspeed.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "longspan/config/config.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// Problems of a run in bf16 with a DeepSpeed file that has this section.
std::string problems(const std::string& text, const std::string& section = "bf16") {
  const testing::TemporaryFolder folder;
  Config config;
  config.optimization.bf16 = true;
  config.memory.deepspeed = folder.write("deepspeed.json", "{\"" + section + "\": " + text + "}");
  return fmt::format("{}", fmt::join(apply_deepspeed(config), "\n"));
}

TEST_CASE("deepspeed: what a file asks of bf16 is read or refused") {
  CHECK(problems(R"({"enabled": true, "bf16_master_weights_and_grads": true})")
            .ends_with("bf16.bf16_master_weights_and_grads: true is not supported; remove it"));
  CHECK(problems(R"({"enabled": false})").find("bf16.enabled is false, but bf16") !=
        std::string::npos);
  CHECK(problems(R"({"enabled": "auto", "immediate_grad_update": true,
                     "bf16_optimizer_states": false})") == "");
}

TEST_CASE("deepspeed: monitors that are off") {
  const std::string name = "monitor_config";
  CHECK(problems(R"({"enabled": true, "tag": "t", "csv_monitor": {"enabled": false}})", name) ==
        "");
  CHECK(problems(R"({"wandb": {"enabled": true}})", name)
            .ends_with("is not supported; remove it; report_to names services"));
  CHECK(problems(R"({"verbose": false})", "comms_config") == "");
  CHECK(problems(R"({"verbose": true})", "comms_config").find("comms_config.verbose: true") !=
        std::string::npos);
}

}  // namespace
}  // namespace longspan
