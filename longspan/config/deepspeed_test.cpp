#include "longspan/config/deepspeed.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "longspan/config/config.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// Problems of a run in bf16 with a DeepSpeed file that has this section bf16.
std::string problems(const std::string& bf16) {
  const testing::TemporaryFolder folder;
  Config config;
  config.optimization.bf16 = true;
  config.memory.deepspeed = folder.write("deepspeed.json", R"({"bf16": )" + bf16 + "}");
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

}  // namespace
}  // namespace longspan
