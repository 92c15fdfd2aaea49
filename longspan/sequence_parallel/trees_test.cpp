// Trees of branches: under every method, and against each path to a leaf as a document of its own.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>
#include <vector>

#include "longspan/testing/conformance.h"
#include "longspan/testing/tree_paths.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::AttentionSolution;
using testing::check_close;
using testing::Conformance;
using testing::Heads;
using testing::Problem;
using testing::random_case;
using testing::request_of;
using testing::solve_plainly;
using testing::spec_of;

/// Returns a tree of `num_branches` branches after a prompt, each of 1 to `most` tokens.
Document star(int64_t prompt, int64_t num_branches, int64_t most, unsigned seed) {
  std::mt19937 random(seed);
  Document document{prompt, {{0, kNoParent}}};
  for (int64_t i = 0; i < num_branches; ++i) {
    document.segments.push_back({document.length, 0});
    document.length += 1 + static_cast<int64_t>(random() % most);
  }
  return document;
}

const Document kDeepTree{40,  // depth 4; branches of one token
                         {{0, kNoParent},
                          {3, 0},
                          {9, 1},
                          {10, 1},
                          {14, 3},
                          {17, 4},
                          {18, 4},
                          {22, 3},
                          {25, 0},
                          {26, 0},
                          {30, 9},
                          {33, 9}}};
const Document kSpanTree{30,
                         {{0, kNoParent}, {12, 0}, {17, 0}, {18, 0}, {22, 3}, {26, 3}},
                         {{2, 9}, {13, 16}, {19, 22}, {23, 25}}};

const std::pair<const char*, std::vector<Document>> kTreeRows[] = {
    {"a star", {star(17, 6, 9, 1)}},
    {"16 branches and a document", {{5}, star(8, 16, 4, 2), {3}}},
    {"branches of branches", {kDeepTree}},
    {"two trees and a pair", {kDeepTree, {9, Fork{2, 5}}, star(1, 3, 5, 3)}},
    {"two-way spans", {kSpanTree, {4}}},
    {"a prompt of one token", {star(1, 2, 1, 4), star(30, 3, 12, 5)}}};

std::vector<AttentionSpec> tree_specs(Heads heads) {
  std::vector<AttentionSpec> specs(4, spec_of(heads));
  specs[1].window = 6;
  specs[1].has_sinks = true;
  specs[2].window = 1;
  specs[2].softcap = 1.5;
  specs[3].has_sinks = true;
  specs[3].value_dim = 12;
  return specs;
}

AttentionSpec latent_spec() {
  AttentionSpec spec = spec_of({6, 6});
  spec.latent_dim = 10;
  return spec;
}

TEST_CASE("trees: the reference equals each path to a leaf as a document of its own") {
  for (const auto& [name, documents] : kTreeRows) {
    std::vector<AttentionSpec> specs = tree_specs({6, 2});
    specs.push_back(latent_spec());
    for (const AttentionSpec& spec : specs) {
      CAPTURE(fmt::format("{}, window {}, sinks {}, latents {}", name, spec.window.value_or(0),
                          spec.has_sinks, spec.latent_dim.value_or(0)));
      const AttentionCase tree = random_case(Packing::from_documents(documents), spec, 7);
      if (!tree.packing.two_way().empty()) continue;  // paths have no spans
      const testing::TreePaths paths = testing::paths_of(tree.packing);
      const at::Tensor places = at::tensor(paths.places, at::kLong),
                       first = at::tensor(paths.first_copies, at::kLong);
      AttentionCase apart = tree;
      apart.packing = Packing::from_lengths(paths.lengths);
      for (at::Tensor* x : {&apart.q_TNH, &apart.k_TMH, &apart.v_TMH, &apart.x_TJ}) {
        if (x->defined()) *x = x->index_select(0, places);
      }
      // The output of a shared token counts once.
      apart.dout_TNH = at::zeros({places.numel(), tree.dout_TNH.size(1), tree.dout_TNH.size(2)},
                                 tree.dout_TNH.options())
                           .index_copy(0, first, tree.dout_TNH);
      const AttentionSolution one = solve_plainly(tree);
      AttentionSolution other = solve_plainly(apart);
      other.out_TNH = other.out_TNH.index_select(0, first);
      // The gradients of a token's copies add up.
      for (at::Tensor* x : {&other.dq_TNH, &other.dk_TMH, &other.dv_TMH, &other.dx_TJ}) {
        if (!x->defined()) continue;
        std::vector<int64_t> sizes = x->sizes().vec();
        sizes[0] = tree.packing.num_tokens();
        *x = at::zeros(sizes, x->options()).index_add(0, places, *x);
      }
      check_close(other, one, testing::kTolerance);
    }
  }
}

TEST_CASE("trees: every method equals the reference, with the bytes of its formula") {
  std::vector<Problem> problems;
  for (const Heads heads : {Heads{8, 2}, {14, 2}}) {
    const std::vector<AttentionSpec> specs = tree_specs(heads);
    for (size_t i = 0; i < std::size(kTreeRows); ++i) {
      // Each row meets two of the specs with each of the heads.
      for (const size_t number : {i, i + 1 + problems.size() % 2}) {
        const AttentionSpec& spec = specs[number % specs.size()];
        AttentionCase problem = random_case(Packing::from_documents(kTreeRows[i].second), spec, 23);
        AttentionSolution expected = solve_plainly(problem);
        problems.push_back(
            {fmt::format("heads {}/{}, window {}, sinks {}, {}", heads.num, heads.num_kv,
                         spec.window.value_or(0), spec.has_sinks, kTreeRows[i].first),
             heads, std::move(problem), std::move(expected)});
      }
    }
  }
  Conformance conformance;
  bool replayed = false;
  for (const Problem& problem : problems) {
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 5}) {
        if (P > 1 && !can_split(*method, P, problem.problem.spec)) continue;
        replayed = !replayed;
        conformance.add(make_parallel_plan(request_of(method, P, problem.problem.spec)), problem,
                        replayed, replayed);
      }
    }
  }
  conformance.check();
}

TEST_CASE("trees: latent attention under every method") {
  const AttentionSpec spec = latent_spec();
  std::vector<Problem> problems;
  for (const size_t row : {size_t{0}, size_t{3}}) {
    AttentionCase problem = random_case(Packing::from_documents(kTreeRows[row].second), spec, 29);
    AttentionSolution expected = solve_plainly(problem);
    problems.push_back({kTreeRows[row].first, {6, 6}, std::move(problem), std::move(expected)});
  }
  Conformance conformance;
  for (const Problem& problem : problems) {
    for (const Method* method : all_methods()) {
      for (const int P : {1, 2, 3, 5}) {
        if (P > 1 && !can_split(*method, P, problem.problem.spec)) continue;
        PlanRequest request = request_of(method, P, problem.problem.spec);
        request.layers = {{problem.problem.spec, 1}};
        conformance.add(make_parallel_plan(request), problem, true, true);
      }
    }
  }
  conformance.check();
}

}  // namespace
}  // namespace longspan
