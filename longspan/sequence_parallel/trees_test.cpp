// Trees of branches that are no pairs: every method refuses them, in its plan and in its attention.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/layers/recurrent_row.h"
#include "longspan/plan/geometry.h"
#include "longspan/registers/method.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/method_plans.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

const std::vector<Document> kTrees[] = {
    {{5}, {20, {{0, kNoParent}, {6, 0}, {9, 0}, {16, 0}}}},           // three branches
    {{24, {{0, kNoParent}, {3, 0}, {8, 1}, {13, 1}, {17, 0}}}, {1}},  // branches of a branch
};

/// Returns the message of the std::logic_error that `call` throws.
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

bool names_tree(const std::string& refusal) {
  return refusal.find("is a tree of ") != std::string::npos &&
         refusal.find("only pairs") != std::string::npos;
}

TEST_CASE("trees: every method refuses all but pairs") {
  for (const testing::MethodPlan& each : testing::plans_of_every_method(3)) {
    for (const std::vector<Document>& documents : kTrees) {
      for (const std::optional<int64_t> window : {std::optional<int64_t>(), {4}}) {
        AttentionSpec spec = each.spec;
        spec.window = window;
        const ParallelPlan& plan = each.plan;
        CAPTURE(fmt::format("{} P={}, window {}", describe_method(plan), plan.sequence_size,
                            window.value_or(0)));
        const Packing padded = plan.method->padded_row(plan, Packing::from_documents(documents));
        CHECK(names_tree(
            refusal_of([&] { plan.method->geometry(plan, AttentionShape(spec), padded, 0); })));
        CHECK(names_tree(refusal_of([&] {
          testing::run_ranks(plan, [&](const Mesh& mesh) {
            const auto attention = make_attention(plan, mesh, cpu_block_kernel());
            const TokenOrder order = attention->token_order(padded);
            const auto heads = [&](int64_t count) {
              return at::zeros({std::ssize(order.index), count, spec.key_dim});
            };
            attention->attend(
                {heads(spec.num_heads), heads(spec.num_kv_heads), heads(spec.num_kv_heads)}, spec,
                order.packing);
          });
        })));
      }
    }
  }
}

TEST_CASE("trees: a recurrence refuses all but pairs") {
  for (const std::vector<Document>& documents : kTrees) {
    const Packing packing = Packing::from_documents(documents);
    const Stretch stretch = [](const std::vector<at::Tensor>& inputs, const Packing&,
                               const CarriedStates&) { return StretchResult{inputs[0], {}}; };
    CHECK(names_tree(refusal_of(
        [&] { over_stretches({at::zeros({packing.num_tokens(), 1, 1})}, packing, stretch); })));
  }
}

}  // namespace
}  // namespace longspan
