"""Curvature from patches, the rows around an anchor: tangent planes, second fundamental forms, curvatures."""
