// Windows, sinks, softcaps, another head dim of values, and latents under every method, compared to
// undistributed attention written in basic operations.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <stdexcept>

#include "longspan/testing/conformance.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::AttentionSolution;
using testing::Conformance;
using testing::Heads;
using testing::kHeadDim;
using testing::Problem;
using testing::random_case;
using testing::request_of;
using testing::solve_plainly;
using testing::spec_of;

/// Windows within a rank's share and beyond several, sinks, a softcap, another head dim of values;
/// one by one and together.
std::vector<AttentionSpec> featured_specs(Heads heads) {
  std::vector<AttentionSpec> specs(6, spec_of(heads));
  specs[0].window = 4;
  specs[1].window = 23;
  specs[1].softcap = 1.5;
  specs[2].has_sinks = true;
  specs[3].window = 1;
  specs[3].has_sinks = true;
  specs[4].window = 9;
  specs[4].has_sinks = true;
  specs[4].softcap = 0.8;
  specs[4].value_dim = 12;
  specs[5].window = 6;
  specs[5].value_dim = 36;
  specs[5].has_sinks = true;
  return specs;
}

TEST_CASE("conformance: windows, sinks and softcaps, every method, degrees, windows and waves") {
  const std::pair<const char*, Packing> rows[] = {
      {"one document", Packing::from_lengths({61})},
      {"ragged documents", Packing::from_lengths({13, 1, 22, 9})},
      {"forks", Packing::from_documents({{31, Fork{11, 24}}, {7}, {24, Fork{1, 20}}})},
      {"row shorter than 2 P", Packing::from_lengths({3})},
      {"two-way spans", Packing::from_documents({{31, Fork{11, 24}, {{2, 11}, {12, 24}, {24, 29}}},
                                                 {29, {}, {{0, 3}, {4, 25}}}})},
      {"a two-way span across ranks", Packing::from_documents({{61, {}, {{5, 59}}}})}};
  std::vector<Problem> problems;
  for (const Heads heads : {Heads{8, 2}, {14, 2}, {6, 6}}) {
    for (const AttentionSpec& spec : featured_specs(heads)) {
      // Each spec meets each row, with at least one of the heads.
      const size_t number = problems.size() / 2;  // index of heads and spec
      for (size_t i = (number + number / 6) % 2; i < std::size(rows); i += 2) {
        AttentionCase problem = random_case(rows[i].second, spec, 19);
        AttentionSolution expected = solve_plainly(problem);
        problems.push_back(
            {fmt::format("heads {}/{}, window {}, sinks {}, softcap {}, values of "
                         "{}, {}",
                         heads.num, heads.num_kv, spec.window.value_or(0), spec.has_sinks,
                         spec.softcap.value_or(0), spec.value_dim, rows[i].first),
             heads, std::move(problem), std::move(expected)});
      }
    }
  }
  Conformance conformance;
  bool replayed = false;  // every other one
  for (const Problem& problem : problems) {
    const AttentionSpec& spec = problem.problem.spec;
    const auto add = [&](const PlanRequest& request) {
      replayed = !replayed;
      conformance.add(make_parallel_plan(request), problem, replayed, replayed);
    };
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 5}) {
        if (P > 1 && !can_split(*method, P, spec)) continue;
        PlanRequest request = request_of(method, P, spec);
        add(request);
        request.head_waves = 2;
        if (P == 3 && takes(*method, kHeadWaves) && !takes(*method, kUlyssesDegree) &&
            (cuts_heads(*method) || problem.heads.num > P)) {
          add(request);
        }
      }
    }
    if (problem.heads.num != 8) continue;
    PlanRequest request = request_of(method_named("usp"), 6, spec);
    request.ulysses_degree = 2;
    add(request);
    request.head_waves = 2;
    add(request);
    request = request_of(method_named("loongtrain"), 8, spec);
    request.ulysses_degree = 2;
    request.window_size = 2;
    add(request);
  }
  conformance.check();
}

/// Latents alone, with another head dim of values, with a softcap. Also where keys and values
/// travel: in a window, and with so many latent elements that Ulysses sends latents only for
/// degrees below 3.
std::vector<AttentionSpec> latent_specs(Heads heads) {
  std::vector<AttentionSpec> specs(5, spec_of(heads));
  for (AttentionSpec& spec : specs) spec.latent_dim = 10;
  specs[4].latent_dim = heads.num_kv * 2 * kHeadDim / 3;
  specs[1].value_dim = 12;
  specs[2].softcap = 1.5;
  specs[2].value_dim = 36;
  specs[3].window = 9;
  return specs;
}

TEST_CASE("conformance: latents, every method, degrees, windows and waves") {
  const std::pair<const char*, Packing> rows[] = {
      {"ragged documents", Packing::from_lengths({13, 1, 22, 9})},
      {"forks", Packing::from_documents({{31, Fork{11, 24}}, {7}, {24, Fork{1, 20}}})},
      {"row shorter than 2 P", Packing::from_lengths({3})},
      {"two-way spans", Packing::from_documents({{31, {}, {{2, 29}}}, {24, {}, {{5, 9}}}})}};
  std::vector<Problem> problems;
  for (const Heads heads : {Heads{8, 8}, {6, 6}, {8, 2}}) {
    for (const AttentionSpec& spec : latent_specs(heads)) {
      const size_t number = problems.size();
      const auto& [name, row] = rows[(number + number / 5) % std::size(rows)];
      AttentionCase problem = random_case(row, spec, 23);
      AttentionSolution expected = solve_plainly(problem);
      problems.push_back({fmt::format("heads {}/{}, window {}, softcap {}, values of {}, {}",
                                      heads.num, heads.num_kv, spec.window.value_or(0),
                                      spec.softcap.value_or(0), spec.value_dim, name),
                          heads, std::move(problem), std::move(expected)});
    }
  }
  Conformance conformance;
  bool replayed = false;  // every other one
  for (const Problem& problem : problems) {
    const AttentionSpec& spec = problem.problem.spec;
    const auto add = [&](PlanRequest request) {
      request.layers = {{spec, 1}};
      replayed = !replayed;
      conformance.add(make_parallel_plan(request), problem, replayed, replayed);
    };
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 4, 5}) {
        if (P > 1 && !can_split(*method, P, spec)) continue;
        PlanRequest request = request_of(method, P, spec);
        add(request);
        request.head_waves = 2;
        if (P == 3 && takes(*method, kHeadWaves) && !takes(*method, kUlyssesDegree) &&
            (cuts_heads(*method) || problem.heads.num > P)) {
          add(request);
        }
      }
    }
    PlanRequest request = request_of(method_named("usp"), 6, spec);
    request.ulysses_degree = 2;
    add(request);
    request.head_waves = 2;
    add(request);
    request = request_of(method_named("loongtrain"), 8, spec);
    request.ulysses_degree = 2;
    request.window_size = 2;
    add(request);
    request = request_of(method_named("loongtrain"), 4, spec);
    request.ulysses_degree = 1;
    request.window_size = 2;
    add(request);
  }
  conformance.check();
}

TEST_CASE("conformance: sinks that are not there, or not asked for, are no silent zeros") {
  AttentionCase problem = random_case({9, 20}, 8, 2, kHeadDim, 9);
  problem.sinks_N = at::zeros({8}, at::kDouble);
  AttentionCase without = problem;
  without.sinks_N = at::Tensor();
  without.spec.has_sinks = true;
  const auto attention = make_local(cpu_block_kernel());
  for (const AttentionCase& wrong : {problem, without}) {
    CHECK_THROWS_AS(attention->attend({wrong.q_TNH, wrong.k_TMH, wrong.v_TMH, wrong.sinks_N},
                                      wrong.spec, wrong.packing),
                    std::logic_error);
  }
}

}  // namespace
}  // namespace longspan
