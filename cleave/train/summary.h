#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "cleave/comm/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/train/report.h"
#include "cleave/train/setup.h"

namespace cleave {

/// The command that continues a run: the one typed, with --resume.
std::string resume_command(const TrainOptions& options);

/// What is about to be trained, on what and how it is split: lines for people.
std::vector<std::string> run_header(const TrainSetup& setup, Model& model, const World& world);

/// The parts of a run's report that do not depend on how it went.
ReportData run_report(const TrainSetup& setup, Model& model, const Mesh& mesh);

/// Bytes of weights, gradients and optimizer state of every rank, on all ranks. Collective.
std::vector<RankMemory> rank_memory(const Axis& everyone, const Mesh& mesh,
                                    const Optimizer& optimizer);

/// The finished checkpoints of a run folder with their sizes.
std::vector<ReportCheckpoint> checkpoint_list(const std::filesystem::path& run);

}  // namespace cleave
