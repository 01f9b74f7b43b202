"""Patches of rows around anchors: tangent planes, the second fundamental form, curvature."""
