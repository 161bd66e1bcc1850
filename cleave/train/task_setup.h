#pragma once
#include <memory>

#include "cleave/data/dataset.h"
#include "cleave/model/model.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// Makes the config that of a model for the task of --task, if that has labels of sequences.
/// Returns whether it is a new classifier: name_classes() sets its classes, which are known when
/// the data is read.
bool fit_to_task(TrainSetup& setup);

/// Gives a new classifier the classes of the training data, and the plan of its model.
std::unique_ptr<Model> name_classes(TrainSetup& setup);

/// The task of --task, or the model's. Throws Error(kUsage) if the model is for another one, or if
/// its config.json lacks the class that a classifier is named after.
Task choose_task(const TrainOptions& o, const Model& model);

}  // namespace cleave::inline train
